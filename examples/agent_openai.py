"""An agent with the real OpenAI SDK from PyPI: one plain answer, one streamed."""

import os
import sys

import openai

question = " ".join(sys.argv[1:]) or "Which agents are there?"
client = openai.OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "sk-agentfw-placeholder"))
messages: list = [{"role": "user", "content": question}]

answer = client.chat.completions.create(model="gpt-4o-mini", messages=messages)
print("plain:   ", answer.choices[0].message.content)

parts = client.chat.completions.create(model="gpt-4o-mini", messages=messages, stream=True)
print("streamed:", "".join(part.choices[0].delta.content or "" for part in parts if part.choices))

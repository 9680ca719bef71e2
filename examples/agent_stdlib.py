"""An agent with nothing but the standard library: asks a model one question and prints the answer.

It is an ordinary program. Under `agentfw run` its key is a placeholder: the real one never enters the VM.
"""

import json
import os
import sys
import urllib.request

base = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
key = os.environ.get("OPENAI_API_KEY", "sk-agentfw-placeholder")
question = " ".join(sys.argv[1:]) or "Which agents are there?"

request = urllib.request.Request(
    f"{base}/chat/completions",
    json.dumps({"model": "gpt-4o-mini", "messages": [{"role": "user", "content": question}]}).encode(),
    {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as reply:
    answer = json.load(reply)
print(answer["choices"][0]["message"]["content"])

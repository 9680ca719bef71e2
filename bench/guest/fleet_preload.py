"""Imported into the template "sdk" of bench/fleet.py: what the SDK does the first time that it is used, done once."""

import openai

openai.OpenAI(api_key="none yet").chat.completions.with_raw_response  # noqa: B018

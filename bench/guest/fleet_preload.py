"""Imported into the template "sdk" of bench/fleet.py: what the SDK does when it is first used (imports, models of its types) is
done once, by a call that is answered right here."""

import openai

try:
    import httpx2 as httpx  # what newer SDKs have
except ImportError:
    import httpx

MESSAGE = {"role": "assistant", "content": "hello", "refusal": None, "annotations": []}
CHOICE = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}
PROMPT, COMPLETION = {"cached_tokens": 0, "audio_tokens": 0}, {"reasoning_tokens": 0, "audio_tokens": 0}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
ANSWER = {
    "id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [CHOICE], "service_tier": "default",
    "system_fingerprint": "f",
    "usage": {**USAGE, "prompt_tokens_details": PROMPT, "completion_tokens_details": COMPLETION},
}  # fmt: skip


def answered(request):
    return httpx.Response(200, json=ANSWER)


openai.OpenAI(api_key="none yet").close()
with httpx.Client(transport=httpx.MockTransport(answered)) as transport:
    client = openai.OpenAI(api_key="none yet", http_client=transport)
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
del client, transport

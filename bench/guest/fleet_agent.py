"""An agent of bench/fleet.py with nothing but the standard library: calls a model over TLS, timed.

    fleet_agent.py HOST PORT HOLD SECONDS INTERVAL

A line of JSON once its first call is answered: when it began (CLOCK_MONOTONIC, the same inside and outside), and how long each
step took. HOLD 1: it waits for a line on stdin. Then calls on the same connection for SECONDS, one each INTERVAL (0: at once one
after the other), and a line with their times. Without SECONDS one more call.
"""

import time

first = time.monotonic_ns()

import http.client  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import socket  # noqa: E402
import ssl  # noqa: E402
import sys  # noqa: E402

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})


def call(connection):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", BODY, headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {data[:200]!r}")
    assert json.loads(data)["choices"][0]["message"]["content"] == "echo: hello", data


def main():
    host, port, hold, seconds, interval = (
        sys.argv[1],
        int(sys.argv[2]),
        sys.argv[3] == "1",
        float(sys.argv[4]),
        float(sys.argv[5]),
    )
    took = {"first": first}
    context = ssl.create_default_context()
    start = time.monotonic_ns()
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    took["resolve"] = time.monotonic_ns() - start
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=120)
    start = time.monotonic_ns()
    plain = socket.socket(family, kind, protocol)
    plain.connect(address)
    plain.settimeout(120)
    connection.sock = context.wrap_socket(plain, server_hostname=host)
    connection.putrequest("POST", "/v1/chat/completions")  # the head is the first that is sent
    connection.putheader("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(BODY)))
    connection.endheaders()
    took["first_send"] = time.monotonic_ns() - start
    connection.send(BODY.encode())
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {data[:200]!r}")
    took["first_call"] = time.monotonic_ns() - start
    print(json.dumps(took), flush=True)
    if hold and not sys.stdin.readline():
        raise SystemExit("nobody said go on")
    times = []
    if not seconds:
        call(connection)
    else:
        end = time.monotonic() + seconds
        due = time.monotonic() + random.random() * interval
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            start = time.monotonic_ns()
            call(connection)
            times.append(time.monotonic_ns() - start)
            due = due + interval if interval else time.monotonic()
    print(json.dumps(times), flush=True)


main()

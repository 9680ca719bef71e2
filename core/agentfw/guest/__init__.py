"""Python that runs inside the guest. Standard library only; nothing here may import agentfw.

The directory is mounted read-only at `/run/agentfw`; `bootstrap.py` is the program of every template, `ssl_offload.py` is what it
puts in the place of `_ssl`.
"""

"""Tests that need /dev/kvm are skipped without it, and named at the end."""

pytest_plugins = ["agentfw.testing.pytest_plugin"]

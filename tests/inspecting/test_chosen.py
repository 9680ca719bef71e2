"""When `inspect` and `audit` are used, and how what they found is shown."""

from __future__ import annotations

import pytest
from agentfw import ConfigError
from agentfw.cli.tables import as_json, as_text
from agentfw.config import Config
from agentfw.plugins import DEFAULT, chosen_plugins, load_plugins
from agentfw.reports import Table


def test_they_are_used_when_they_have_a_table() -> None:
    assert chosen_plugins(Config()) == DEFAULT
    assert chosen_plugins(Config({"inspect": {}})) == (*DEFAULT, "inspect")
    assert chosen_plugins(Config({"audit": {}, "inspect": {}})) == (*DEFAULT, "inspect", "audit")
    assert chosen_plugins(Config({"inspect": {}, "run": {"plugins": ["dns"]}})) == ("dns",)


def test_a_table_that_is_added_later_needs_a_restart() -> None:
    manager = load_plugins(chosen_plugins(Config()), Config())
    with pytest.raises(ConfigError) as caught:
        manager.reload(Config({"inspect": {}}))
    assert caught.value.key == "run.plugins" and caught.value.message.endswith("need a restart (`inspect` is new)")
    manager = load_plugins(chosen_plugins(Config({"inspect": {}})), Config({"inspect": {}}))
    assert manager.reload(Config({"inspect": {"budget": [{"calls": 1}]}})) == ["inspect"]


def test_tables_for_people() -> None:
    table = Table("t", "things", ("name", "count", "cost", "nothing"), [("a", 5, 0.25, None), ("long\nname", 10, None, None)])
    assert as_text(table).splitlines() == [
        "things",
        "name        count  cost",
        "a               5  0.25",
        "long\\nname     10     -",
    ]
    assert as_json([table]) == {
        "t": [
            {"name": "a", "count": 5, "cost": 0.25, "nothing": None},
            {"name": "long\nname", "count": 10, "cost": None, "nothing": None},
        ]
    }

"""Plugins: what they are, how they are found, and how the core calls them.

A plugin is a module (named by an entry point of group ``agentfw.plugins``, or a file such as ``./my_policy.py``) that has a class
`Plugin`; an entry point may name the class itself. The class may have

    name: str                                   # default: the entry point's or the file's name
    api: str                                    # of `hookspecs.API_VERSION`: "1", or "1.2" if it needs what came with 1.2
    config_type: type[msgspec.Struct] | None    # the table [name] of agentfw.toml; __init__ gets an instance, and may
                                                # raise ConfigError("key.in.the.table", "what is wrong")
    def __init__(self, config): ...             # without config_type: __init__(self)

    def reconfigure(self, config): ...          # -> a callable. PREPARE to go on with another table: check it, raise
                                                # ConfigError, change nothing. The callable COMMITS and cannot fail. Without it, a
                                                # changed table needs a restart
    def check_guest(self, file, environment, sees): ...     # ConfigError if the agents, with these variables and seeing the files
                                                # that `sees` says, could read what they must not; `file`: agentfw.toml or None

and implements hooks of `agentfw.hookspecs` with `agentfw.hookimpl`. What is meant as a hook and would never be called is an
error at start.

`discovery` says which plugins there are, `loading` makes them, `fitting` says which hooks they implement, `manager` has one typed
method a hook (nothing else in the core calls one), `calling` is one implementation called once: its time limit, its counters, its
errors; `failures` what the log is told of these; `limits` is the operator's table [plugins], `reloading` another agentfw.toml for
plugins that run, `tracing` a line for each call, `watchdog` names who does not return.

To add a hook: its specification in `hookspecs`, and a method in `manager`.
"""

from .discovery import DEFAULT, GROUP, PluginInfo, available, chosen_plugins, plugin_name, pool_plugins, without_effect
from .loading import RESERVED, load_plugins, make_plugin
from .manager import PluginManager

__all__ = [
    "DEFAULT",
    "GROUP",
    "RESERVED",
    "PluginInfo",
    "PluginManager",
    "available",
    "chosen_plugins",
    "load_plugins",
    "make_plugin",
    "plugin_name",
    "pool_plugins",
    "without_effect",
]

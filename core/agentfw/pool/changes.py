"""A configuration that is read again: what of it a pool cannot take over while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..config import Config
from ..errors import AgentfwError, ConfigError
from ..plugins import PluginManager, without_effect
from .config import PoolConfig
from .jobs import PoolError

AT_START = ("workers", "socket", "listen")
"""Keys of [pool] that count from the next start on."""

log = logging.getLogger("agentfw.pool")


def read_again(load: Callable[[], Config], before: PoolConfig, workers: int, plugins: PluginManager) -> tuple[Config, PoolConfig]:
    """PoolError "bad_config": all goes on as before."""
    try:
        config = load()
        pool = config.plugin("pool", PoolConfig)
        for key in AT_START:
            if getattr(pool, key) != getattr(before, key):
                raise config.error(f"pool.{key}", "needs a restart of the pool")
        if pool.size < workers:
            raise config.error("pool.size", f"fewer VMs than the {workers} workers needs a restart of the pool")
        plugins.check(config)
        for note in set(without_effect(config, plugins.names)) - set(without_effect(plugins.config, plugins.names)):
            log.warning("%s", note)
    except ConfigError as error:
        raise PoolError("bad_config", str(error), error.hint) from None
    except AgentfwError as error:
        raise PoolError("bad_config", str(error)) from None
    return config, pool

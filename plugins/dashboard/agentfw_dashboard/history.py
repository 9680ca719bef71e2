"""A pool's last ten minutes, a second apart."""

from __future__ import annotations

from collections import deque

from agentfw.views import Sample

from .wire import Totals

LENGTH = 600


class History:
    """`note()` is to be called about each second."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=LENGTH)
        self._before: tuple[float, Totals] | None = None

    def note(self, now: float, clock: float, totals: Totals, running: int, memory: int) -> None:
        """`now`: seconds since the epoch; `clock`: of a clock that nobody sets."""
        before, self._before = self._before, (clock, totals)
        if before is None or clock <= before[0]:
            return
        seconds, old = clock - before[0], before[1]

        def rate(name: str) -> float:
            return max(0.0, float(getattr(totals, name) - getattr(old, name)) / seconds)

        self.samples.append(
            Sample(
                time=now,
                running=running,
                started=rate("started"),
                ended=rate("done"),
                questions=rate("questions"),
                requests=rate("requests"),
                model_calls=rate("model_calls"),
                tokens=rate("input_tokens") + rate("output_tokens"),
                denials=rate("denials"),
                bytes_up=rate("bytes_up"),
                bytes_down=rate("bytes_down"),
                memory=memory,
            )
        )

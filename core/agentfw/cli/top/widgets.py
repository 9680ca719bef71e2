"""Lines on the screen, of which only those that changed are written again.

textual repaints what a widget says is stale, and by itself a widget says all of it. These remember what is drawn: an unchanged
screen costs a terminal nothing, and one agent's change costs its line. (DataTable, textual's own, measures and keeps each cell
of each row: 1,500 rows that are sorted anew each time are what it is worst at.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ...texts import fitted, shown
from .pages import Line
from .rows import COLUMNS, Agents, Column, fitting

if TYPE_CHECKING:
    from .words import Glyphs

ROLES = {
    "": Style(),
    "b": Style(bold=True),
    "dim": Style(dim=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "key": Style(color="cyan"),
    "bar": Style(color="blue"),
    "head": Style(bold=True, underline=True),
    "titles": Style(reverse=True),
    "cursor": Style(reverse=True),
}
"""Of a terminal's own colours, so that they fit it, dark or light. None says anything that the text does not."""
WIDEST = 1000
ASIDE = 20
"""Columns that a line is longer than the screen are seen in such steps."""


class Page(ScrollView, can_focus=True):
    """Lines that are given, scrolled by keys."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    Page { background: ansi_default; scrollbar-size: 0 0; overflow: hidden hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("left,h", "aside(-1)", show=False),
        Binding("right,l", "aside(1)", show=False),
        Binding("pageup", "leap(-1)", show=False),
        Binding("pagedown", "leap(1)", show=False),
        Binding("home,g", "edge(-1)", show=False),
        Binding("end,G", "edge(1)", show=False),
    ]

    def __init__(self, id: str, *, focusable: bool = True) -> None:
        super().__init__(id=id)
        self.can_focus = focusable
        self.lines: Sequence[Line] = ()
        self.top = 0
        """The first line that is seen."""
        self.left = 0
        """The first column."""
        self._drawn: dict[int, Line] = {}

    def show_lines(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.redraw()

    def line(self, y: int) -> Line:
        """What is to be in the y-th line of the screen's part that is ours."""
        at = self.top + y
        return self.lines[at] if at < len(self.lines) else ()

    @property
    def length(self) -> int:
        return len(self.lines)

    def redraw(self) -> None:
        """Write what is different."""
        height, wide = self.size.height, self.size.width
        self.top = max(min(self.top, self.length - height), 0)
        for y in range(height):
            if self._drawn.get(y) != self.line(y):
                self.refresh(Region(0, y, wide, 1))

    def on_resize(self) -> None:
        self._drawn.clear()
        self.redraw()

    def render_line(self, y: int) -> Strip:
        line = self._drawn[y] = self.line(y)
        wide = self.size.width
        # Whatever led here, nothing that is no text gets past this.
        strip = Strip([Segment(shown(text, WIDEST), ROLES[role]) for text, role in line if text])
        return strip.crop(self.left).adjust_cell_length(wide, ROLES[""])

    def action_move(self, lines: int) -> None:
        self.go(self.top + lines)

    def action_aside(self, way: int) -> None:
        self.left = max(min(self.left + way * ASIDE, WIDEST), 0)
        self._drawn.clear()
        self.redraw()

    def action_leap(self, pages: int) -> None:
        self.go(self.top + pages * max(self.size.height - 1, 1))

    def action_edge(self, way: int) -> None:
        self.go(0 if way < 0 else self.length)

    def go(self, top: int) -> None:
        self.top = top
        self.redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(self.length, 1)


class Table(Page):
    """The agents: their titles, and under them as many as there is room for. The cursor stays on its agent, wherever it goes."""

    class Chosen(Message):
        """Enter was pressed on an agent."""

        def __init__(self, agent_id: str) -> None:
            super().__init__()
            self.agent_id = agent_id

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "choose", show=False)]

    def __init__(self, id: str, agents: Agents, glyphs: Glyphs) -> None:
        super().__init__(id)
        self.agents = agents
        self.glyphs = glyphs
        self.ids: list[str] = []
        self.filter = ""
        self.sort = "cores"
        self.reverse = False
        self.ended = False
        self.cursor = ""
        """The id of the agent under it."""
        self.moved = False
        """Somebody chose it. Until then it stays at the first agent, whoever that is."""
        self._columns: list[tuple[Column, int]] = []

    @property
    def length(self) -> int:
        return len(self.ids) + 1

    def take(self) -> None:
        """Filter and sort anew."""
        before = self._index()
        self.ids = self.agents.ids(self.filter, self.sort, self.reverse, self.ended)
        if not self.moved:
            self.cursor = self.ids[0] if self.ids else ""
        elif self.cursor not in self.ids:
            # Its place is kept, by who is there now.
            self.cursor = self.ids[min(before, len(self.ids) - 1)] if self.ids else ""
        self._follow()

    def take_from_the_top(self) -> None:
        self.moved = False
        self.take()

    def sort_by(self, name: str) -> None:
        """The same again: the other way round."""
        self.reverse = not self.reverse if name == self.sort else False
        self.sort = name
        self.take_from_the_top()

    def sort_beside(self, way: int) -> None:
        """By the column beside the one that it is sorted by."""
        seen = [column.name for column, _ in self._columns] or [column.name for column in COLUMNS]
        at = seen.index(self.sort) if self.sort in seen else 0
        self.sort_by(seen[(at + way) % len(seen)])

    def line(self, y: int) -> Line:
        if y == 0:
            return ((self._titles(), "titles"),)
        at = self.top + y - 1
        if at >= len(self.ids):
            return ((" " + self._nothing(), "dim"),) if y == 1 and not self.ids else ()
        known = self.agents.known.get(self.ids[at])
        if known is None:
            return ()
        now = self.agents.now
        cells = [fitted(column.text(known, now), wide, column.right) for column, wide in self._columns]
        if known.row.id == self.cursor:
            return ((" ".join(cells), "cursor"),)
        row, roles = known.row, {"state": "", "denials": "bad", "name": "b"}
        good = row.state in ("running", "starting") or row.how == "code 0"
        roles["state"] = "good" if good else "warn" if row.state == "queued" else "bad"
        dim = "dim" if row.state == "done" else ""
        spans = []
        for (column, _), cell in zip(self._columns, cells, strict=True):
            spans.append((cell + " ", roles.get(column.name, dim)))
        return tuple(spans)

    def _titles(self) -> str:
        titles = []
        for column, wide in self._columns:
            mark = (self.glyphs.up if self._rising(column) else self.glyphs.down) if column.name == self.sort else ""
            titles.append(fitted(column.title[: wide - 1] + mark if mark else column.title, wide, column.right))
        return fitted(" ".join(titles), self.size.width)

    def _rising(self, column: Column) -> bool:
        from .rows import FIRST_SMALLEST

        return (column.name in FIRST_SMALLEST) is not self.reverse

    def _nothing(self) -> str:
        if self.filter:
            return f"no agent has all of `{shown(self.filter, 60)}` (Esc: no filter)"
        return "no agents" if self.ended or not self.agents.known else "no agent runs or waits (a: those that have ended, too)"

    def redraw(self) -> None:
        self._columns = fitting(self.size.width)
        super().redraw()

    def action_aside(self, way: int) -> None:
        """All columns for which there is room are there."""

    def action_move(self, lines: int) -> None:
        self._put(self._index() + lines)

    def action_leap(self, pages: int) -> None:
        self._put(self._index() + pages * max(self.size.height - 2, 1))

    def action_edge(self, way: int) -> None:
        self._put(0 if way < 0 else len(self.ids) - 1)
        self.moved = way > 0

    def action_choose(self) -> None:
        if self.cursor:
            self.post_message(self.Chosen(self.cursor))

    def _index(self) -> int:
        try:
            return self.ids.index(self.cursor)
        except ValueError:
            return 0

    def _put(self, index: int) -> None:
        if self.ids:
            self.moved = True
            self.cursor = self.ids[max(0, min(index, len(self.ids) - 1))]
            self._follow()

    def _follow(self) -> None:
        """Scroll so that the cursor is seen."""
        at, room = self._index(), max(self.size.height - 1, 1)
        self.top = min(max(self.top, at - room + 1), at)
        self.redraw()

"""What file rules cost: `python bench/rules.py`. Must: nothing to see without any, little with as many as people write."""

from __future__ import annotations

import tempfile
from pathlib import Path

import common

GUEST = Path(__file__).parent / "guest"
RULES = {
    "no rules": [],
    "a call": [],
    "10 rules": ["**/.env", "**/.git/config", "**/id_*", *(f"/bench/secrets{i}/**" for i in range(7))],
    "100 rules": ["**/.env", "**/*.pem", "**/id_*", *(f"/bench/secrets{i}/**" for i in range(97))],
    "all hide": [f"**/secret{i}*" for i in range(10)],
    "500 rules": [f"**/secret{i}*/**" for i in range(500)],
}


def main() -> None:
    common.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "files")
        (files / ("d/" * 8)).mkdir(parents=True)
        (files / ("d/" * 8) / "leaf").touch()
        for i in range(1000):
            (files / f"f{i}").touch()
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in RULES}
        options = {}
        for name, patterns in RULES.items():
            config = Path(folder, f"{len(options)}.toml")
            calls = '[policy.syscalls]\ndeny = ["flock"]' if name == "a call" else ""
            hidden = len(patterns) if name == "all hide" else 3
            config.write_text(f"[policy.files]\nhide = {patterns[:hidden]}\ndeny = {patterns[hidden:]}\n{calls}")
            options[name] = ("--config", str(config), "--mount", f"{files}:/bench")
        common.in_vm(GUEST / "files.py", "/bench", options=options["no rules"])
        for _ in range(5):
            for name in RULES:
                rows[name].append(common.in_vm(GUEST / "files.py", "/bench", options=options[name]))
        bare = common.median_rows(rows["no rules"])
        for name in RULES:
            for what, value in common.median_rows(rows[name]).items():
                print(f"{name:10} {what:16} {value:9.1f} us   ratio {value / bare[what]:.3f}")


if __name__ == "__main__":
    main()

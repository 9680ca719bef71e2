"""CPU-bound loops of pyperformance's kinds (own code); prints {name: seconds} as JSON."""

import itertools
import json
import re
import time


def nbody(steps=60000):
    bodies = [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 39.5],
        [4.8, -1.2, -0.1, 0.6, 2.8, -0.02, 0.04],
        [8.3, 4.1, -0.4, -1.0, 1.8, 0.008, 0.01],
    ]
    for _ in range(steps):
        for i, a in enumerate(bodies):
            for b in bodies[i + 1 :]:
                dx, dy, dz = a[0] - b[0], a[1] - b[1], a[2] - b[2]
                mag = 0.001 * (dx * dx + dy * dy + dz * dz) ** -1.5
                for k, d in enumerate((dx, dy, dz)):
                    a[3 + k] -= d * b[6] * mag
                    b[3 + k] += d * a[6] * mag
        for a in bodies:
            for k in range(3):
                a[k] += 0.001 * a[3 + k]
    return bodies[0][0]


def fannkuch(n=9):
    best = 0
    for order in itertools.permutations(range(n)):
        perm, flips = list(order), 0
        while k := perm[0]:
            perm[: k + 1] = perm[k::-1]
            flips += 1
        best = max(best, flips)
    return best


def json_round(n=900):
    data = {"users": [{"id": i, "name": f"user {i}", "tags": ["a", "b", "c"], "score": i / 7} for i in range(100)]}
    for _ in range(n):
        data = json.loads(json.dumps(data))
    return len(data["users"])


def regex(n=2500):
    text = "The quick brown fox 2026-11-29 jumps over 13 lazy dogs at http://example.org/path?x=1 " * 20
    return sum(len(re.findall(r"\b[a-z]+\b|\d{4}-\d\d-\d\d|https?://\S+", text)) for _ in range(n))


def objects(n=900000):
    class Point:
        __slots__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = x, y

        def add(self, other):
            return Point(self.x + other.x, self.y + other.y)

    p, step = Point(0, 0), Point(1, 2)
    for _ in range(n):
        p = p.add(step)
    return p.x


def strings(n=400000):
    parts = {}
    for i in range(n):
        key = f"k{i % 997}"
        parts[key] = parts.get(key, "") + str(i)[-3:]
    return len("".join(sorted(parts.values())))


def allocate(n=150):
    return sum(len([(i, str(i)) for i in range(8000)]) for _ in range(n))


results = {}
for loop in (nbody, fannkuch, json_round, regex, objects, strings, allocate):
    loop(*([1] if loop not in (fannkuch,) else [4]))  # warm: page in, specialise
    best = []
    for _ in range(3):
        start = time.perf_counter()
        loop()
        best.append(time.perf_counter() - start)
    results[loop.__name__] = min(best)
print(json.dumps(results))

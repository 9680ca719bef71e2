"""What a rehearsal runs (agentfw.rehearsal): what every program has in it and no more.

How a program ends does not belong to what is populated when it begins: it is killed while it sleeps.
"""

import time


def main() -> None:
    print("rehearsed", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main()

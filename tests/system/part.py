"""One process of a replica in parts, for parts_test.py: `python part.py SOCKET REPLICA PART PARTS DIMENSION FOLDER`.

The model is a matrix and a vector. The matrix is cut along the dimension, in rows or columns; the vector is held by all
(in rows) or by the first part only (in columns). It trains by adding 1 / STEPS to each element, STEPS times, once FOLDER
has a file `train`; serves until there is a file `end`; finishes, and stores what it holds.
"""

import sys
import time
from pathlib import Path

import numpy as np

SHAPE = (23, 40)
ELEMENTS = 300
STEPS = 64
JOB = "test"
FRAGMENT_ELEMENTS = 256


def bounds(length: int, part: int, parts: int) -> range:
    """As torch.chunk() cuts: the last may be shorter, or empty."""
    size = -(-length // parts)
    return range(min(part * size, length), min((part + 1) * size, length))


def main(socket: str, replica: str, part: int, parts: int, dimension: int, folder: Path) -> None:
    import gossamer

    held = bounds(SHAPE[dimension], part, parts)
    size = [len(held) if d == dimension else n for d, n in enumerate(SHAPE)]
    offset = [held.start if d == dimension else 0 for d in range(2)]
    has_vector = dimension == 0 or part == 0
    arrays = {"matrix": np.zeros(size, np.float32), "vector": np.zeros(ELEMENTS if has_vector else 0, np.float32)}
    run = gossamer.attach(
        arrays,
        job=JOB,
        socket=socket,
        fragment_elements=FRAGMENT_ELEMENTS,
        part=(part, parts),
        replica=f"{replica}-{folder.name}",  # another test of this user may run at the same time
        slices={"matrix": (SHAPE, offset), "vector": ((ELEMENTS,), (0,))},
        timeout_s=30,
    )
    np.savez(folder / f"{replica}-{part}-begin.npz", **arrays)
    (folder / f"{replica}-{part}-ready").touch()
    trained = 0
    while not (folder / "end").exists():
        if trained < STEPS and (folder / "train").exists():
            trained += 1
            for array in arrays.values():
                array += 1 / STEPS
            if trained == STEPS:
                (folder / f"{replica}-{part}-trained").touch()
        run.step()
        if message := run.info().message:
            (folder / f"{replica}-{part}-message").write_text(message)
        time.sleep(0.001)
    finish = run.finish(timeout_s=30)
    np.savez(folder / f"{replica}-{part}-end.npz", **arrays)
    print(finish.agreed, finish.members, finish.saver)
    run.close()


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:6]), Path(sys.argv[6]))  # type: ignore[arg-type]

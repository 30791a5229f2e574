"""A CUDA toolkit from pip's nvidia wheels. `pip install "cuda-toolkit[nvcc,cudart,cccl]"` puts files into site-packages. This
module links them in the cache into the layout that nvcc and PyTorch expect of a CUDA_HOME."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path


def wheel_home(cache: Path | None) -> Path | None:
    """A CUDA_HOME made from the newest wheels on sys.path that contain nvcc; None without such wheels or without a `cache`."""
    roots = [root for entry in sys.path for root in Path(entry or ".").glob("nvidia/cu*") if _is_toolkit(root)]
    if not roots or cache is None:
        return None
    return lay_out(max(roots, key=lambda r: int("".join(filter(str.isdigit, r.name)) or 0)), cache)


def lay_out(root: Path, cache: Path) -> Path | None:
    """Arrange the files of `root` (site-packages/nvidia/cu13) as a toolkit below `cache`. None if the cache cannot be written.

    The wheels have the folder `lib`, but nvcc and torch search in `lib64`. They also have no `libcudart.so` without a version
    in its name. nvcc finds its other programs relative to its own folder. So `bin` is a real folder of links, because a link to
    `bin` would resolve to the wheel.
    """
    stamp = (root / "bin/nvcc").stat()
    name = hashlib.sha256(f"{root.absolute()}\0{stamp.st_mtime_ns}\0{stamp.st_size}".encode()).hexdigest()[:12]
    home = cache / "toolkit" / name
    if home.is_dir():
        return home
    unfinished = home.with_name(f"{name}.{os.getpid()}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        for folder, source in (("bin", "bin"), ("lib64", "lib")):
            (unfinished / folder).mkdir(parents=True)
            for item in sorted((root / source).iterdir()) if (root / source).is_dir() else ():
                (unfinished / folder / item.name).symlink_to(item.absolute())
        for library in sorted((unfinished / "lib64").glob("*.so.*")):
            plain = library.with_name(library.name.partition(".so")[0] + ".so")
            if not plain.exists():
                plain.symlink_to(library.name)
        for folder in ("include", "nvvm"):
            (unfinished / folder).symlink_to((root / folder).absolute())
        unfinished.rename(home)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        return home if home.is_dir() else None  # another process may have finished it first
    return home


def _is_toolkit(root: Path) -> bool:
    return all((root / part).exists() for part in ("bin/nvcc", "include/cuda_runtime.h", "nvvm"))

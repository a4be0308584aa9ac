"""`python -m handbook FOLDER [--base /docs/]`: builds the site, or says what is wrong with the pages."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path, PurePosixPath

from handbook.site import Broken, build

ROOT = Path(__file__).parent.parent
LIST = ".handbook"  # Names the files that the last build wrote.


def main() -> int:
    """Exit code 1: a page has a problem, and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m handbook", description="Builds the documents as a site.")
    parser.add_argument("folder", type=Path, help="where to write it")
    parser.add_argument("--base", default="", help="the path under which it is served, for its 404 page: /docs/")
    chosen = parser.parse_args()
    try:
        files = build(ROOT, chosen.base)
        write(chosen.folder, files)
    except Broken as error:
        print(error, f"{len(error.problems)} problems; nothing was written", sep="\n", file=sys.stderr)
        return 1
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 1
    size = sum(len(content) for content in files.values())
    print(f"wrote {len(files)} files, {size / 1e6:.1f} MB: {chosen.folder / 'index.html'}")
    return 0


def write(folder: Path, files: dict[PurePosixPath, bytes]) -> None:
    """Writes the site, and removes what an earlier build wrote and this one does not."""
    listed = folder / LIST
    old = set(listed.read_text("utf-8").splitlines()) if listed.exists() else set()
    if not listed.exists() and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files that no build of this site wrote; name an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    # The list is first: a build that is interrupted can still be written over.
    listed.write_text("\n".join(sorted({*old, *map(str, files)})) + "\n", "utf-8")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    for gone in sorted(old - {str(path) for path in files}):
        if (folder / gone).resolve().is_relative_to(folder.resolve()):
            (folder / gone).unlink(missing_ok=True)
    listed.write_text("\n".join(sorted(map(str, files))) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""Makes a release on this machine: version, changelog, tests, wheel and sdist, commit and tag.

    python scripts/release.py 0.2.0          print the steps, and check whether they are possible
    python scripts/release.py 0.2.0 --do     do it

The repository's address in the package is $CALLBOARD_REPOSITORY, else git's `origin`.

Nothing is uploaded. Afterwards, push the tag and upload the files in `dist/`.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

UNRELEASED = "## [Unreleased]\n"
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)


class CannotRelease(Exception):
    """The release is not possible. The message has the reason."""


def main(arguments: list[str] | None = None, *, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as in 0.2.0")
    parser.add_argument("--do", action="store_true", help="change files, build, commit and tag")
    options = parser.parse_args(arguments)
    try:
        if options.do:
            release(root, options.version, datetime.datetime.now(datetime.UTC).date())
        else:
            tell(root, options.version)
    except (CannotRelease, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def tell(root: Path, version: str) -> None:
    """Print the steps of `release`.

    Raises:
    CannotRelease: The release is not possible.
    """
    old = require_ready(root, version)
    print(f"pyproject.toml: {old} becomes {version}")
    print(f"CHANGELOG.md: what is unreleased becomes {version}:\n")
    print(unreleased((root / "CHANGELOG.md").read_text()))
    print(f"\nThen: make test test-all, build into dist/, commit, tag v{version}. Add --do to do it.")


def release(root: Path, version: str, day: datetime.date) -> None:
    """Make the release.

    Raises:
    CannotRelease: The release is not possible. Files may have been changed, but no commit was made.
    """
    require_ready(root, version)
    project, changelog = root / "pyproject.toml", root / "CHANGELOG.md"
    project.write_text(_VERSION.sub(f'version = "{version}"', project.read_text(), count=1))
    changelog.write_text(released(changelog.read_text(), version, day))
    run(root, "make", "test", "test-all")
    shutil.rmtree(root / "dist", ignore_errors=True)
    run(root, str(root / ".venv" / "bin" / "python"), "-m", "hatchling", "build", "-d", "dist")
    check(root / "dist", version)
    run(root, "git", "commit", "--quiet", "--all", "--message", f"release: {version}")
    run(root, "git", "tag", "--annotate", f"v{version}", "--message", f"Callboard {version}")
    print(f"v{version} is tagged, and dist/ has what to upload. To publish it: git push --follow-tags")


def require_ready(root: Path, version: str) -> str:
    """Return the current version.

    Raises:
    CannotRelease: The new version is invalid or not newer, the checkout has changes, the tag exists, or nothing is
    unreleased.
    """
    found = _VERSION.search((root / "pyproject.toml").read_text())
    if found is None:
        raise CannotRelease("pyproject.toml has no line: version = …")
    if numbers(version) <= numbers(found[1]):
        raise CannotRelease(f"{version} isn't newer than {found[1]}")
    if run(root, "git", "status", "--porcelain"):
        raise CannotRelease("the checkout has changes: commit them first")
    if run(root, "git", "tag", "--list", f"v{version}"):
        raise CannotRelease(f"v{version} is a tag already")
    if not unreleased((root / "CHANGELOG.md").read_text()).strip():
        raise CannotRelease("CHANGELOG.md has nothing below Unreleased")
    return found[1]


def numbers(version: str) -> tuple[int, ...]:
    """The three numbers of a version.

    Raises:
    CannotRelease: The version is invalid.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise CannotRelease(f"{version!r} is no version: it has three numbers, as 0.2.0")
    return tuple(map(int, version.split(".")))


def unreleased(changelog: str) -> str:
    """The text below the heading Unreleased.

    Raises:
    CannotRelease: There is no such heading.
    """
    _, heading, rest = changelog.partition(UNRELEASED)
    if not heading:
        raise CannotRelease(f"CHANGELOG.md has no line: {UNRELEASED.strip()}")
    return rest.partition("\n## [")[0].strip("\n")


def released(changelog: str, version: str, day: datetime.date) -> str:
    """The changelog with the unreleased entries below a heading of this version and day."""
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## [{version}] - {day:%Y-%m-%d}\n", 1)


def check(dist: Path, version: str) -> None:
    """Check the built files.

    Raises:
    CannotRelease: There isn't exactly one wheel and one sdist of that version, or the wheel contains more than the
    package.
    """
    wheel, sdist = dist / f"callboard-{version}-py3-none-any.whl", dist / f"callboard-{version}.tar.gz"
    if sorted(dist.iterdir()) != sorted([wheel, sdist]):
        raise CannotRelease(f"dist/ has {', '.join(sorted(each.name for each in dist.iterdir()))}")
    with zipfile.ZipFile(wheel) as files:
        tops = {name.partition("/")[0] for name in files.namelist()}
        metadata = files.read(f"callboard-{version}.dist-info/METADATA").decode()
    if tops != {"callboard", f"callboard-{version}.dist-info"}:
        raise CannotRelease(f"the wheel has {', '.join(sorted(tops))}")
    if f"\nVersion: {version}\n" not in metadata:
        raise CannotRelease("the wheel says another version")
    if "\nProject-URL: Repository, https://" not in metadata:
        raise CannotRelease("the package names no repository: set CALLBOARD_REPOSITORY to its address on the web")
    with tarfile.open(sdist) as packed:
        if any("/tests/" in name for name in packed.getnames()):
            raise CannotRelease("the sdist has tests")


def run(root: Path, *command: str) -> str:
    """Run a command. The output of git is returned, that of others is printed."""
    has_output = command[0] == "git"
    done = subprocess.run(command, cwd=root, check=True, text=True, stdout=subprocess.PIPE if has_output else None)
    return (done.stdout or "").strip()


if __name__ == "__main__":
    raise SystemExit(main())

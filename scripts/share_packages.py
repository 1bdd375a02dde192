"""Links files of this environment into that of another Python, so that pip need not find and unpack them again.

    python scripts/share_packages.py 3.10 SITE WHEEL... <requirements.txt

SITE gets the packages of these requirements and all that they require, but none with binaries for one version of Python
and none for a later version; and the wheels, with links to the files that they have in common with packages here.
"""

import csv
import io
import os
import sys
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name


def main(version: str, site: str, *wheels: str) -> None:
    requirements = (line.partition("#")[0].strip() for line in sys.stdin)
    for package in packages_of([*filter(None, requirements)], version).values():
        if is_for(version, package):
            for file in package.files:
                if ".." not in file.parts and file.suffix != ".pyc":  # no programs of bin/
                    link(file, site)
    for wheel in wheels:
        unpack(wheel, site)


def packages_of(requirements: list[str], version: str) -> dict[str, Distribution]:
    """Return this environment's packages that the requirements need with that version of Python, by name."""
    packages, waiting, seen = {}, [(words, "") for words in requirements], set()
    while waiting:
        words, extra = waiting.pop()
        needed = Requirement(words)
        if not needed.marker or needed.marker.evaluate({"extra": extra, "python_version": version}):
            for name, wanted in {(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)} - seen:
                seen.add((name, wanted))
                try:
                    packages[name] = distribution(name)
                except PackageNotFoundError:
                    continue
                waiting += [(words, wanted) for words in packages[name].requires or ()]
    return packages


def is_for(version: str, package: Distribution) -> bool:
    tags = [line for line in package.read_text("WHEEL").splitlines() if line.startswith("Tag: ")]
    of_any_version = all("-none-" in tag or "-abi3-" in tag for tag in tags)
    return of_any_version and f"{version}.0" in SpecifierSet(package.metadata.get("Requires-Python", ""))


def unpack(wheel: str, site: str) -> None:
    with ZipFile(wheel) as archive:
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        here = {f"{file}": file for file in distribution(record.split("-")[0]).files if file.hash}
        for path, digest, _ in csv.reader(io.TextIOWrapper(archive.open(record))):
            if path in here and digest == f"{here[path].hash.mode}={here[path].hash.value}":
                link(here[path], site)
            else:
                archive.extract(path, site)


def link(file: PackagePath, site: str) -> None:
    place = os.path.join(site, file)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.link(file.locate(), place)


main(*sys.argv[1:])

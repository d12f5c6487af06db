"""What is said of the dependencies is true: licences, the bill of materials, pins, the audit's input."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release.bill_of_materials import bill_of_materials
from release.dependencies import (
    DEVELOPMENT,
    UNKNOWN,
    Package,
    declared,
    licence_of,
    normal,
    packages,
    pins,
)
from release.licences import ACCEPTED, NOT_INSTALLED, parts, rows

ROOT = Path(__file__).parents[2]
HANDED_ON = [extra for extra in declared() if extra != "dev"]


@pytest.fixture(scope="module")
def found() -> dict[str, Package]:
    return packages()


@pytest.fixture(scope="module")
def listed() -> dict[str, tuple[str, str, str]]:
    """The rows of docs/licences.md: version, licence, needed by."""
    text = (ROOT / "docs" / "licences.md").read_text()
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: (row[1], row[2], row[3]) for row in cells if row[0] not in {"package", "---"}}


@pytest.mark.parametrize("extra", HANDED_ON)
def test_every_declared_dependency_is_in_the_licence_list(extra: str, listed) -> None:
    missing = [r.name for r in declared()[extra] if normal(r.name) not in listed]
    assert missing == [], "run `make licences`"


def test_everything_that_is_installed_with_quark_is_listed_as_it_is(found, listed) -> None:
    wrong = {}
    for name, version, licence, _ in rows(found):
        told = listed.get(name)
        if found[name].licence is not None and (told is None or told[:2] != (version, licence)):
            wrong[name] = (told, version, licence)
    assert wrong == {}, "run `make licences`"


def test_every_licence_may_be_handed_on(listed) -> None:
    refused = {
        name: licence for name, (_, licence, _) in listed.items() if not parts(licence) <= ACCEPTED
    }
    assert refused == {}
    assert parts("MIT OR (GPL-3.0-only AND Zlib)") - ACCEPTED == {"GPL-3.0-only"}
    assert UNKNOWN not in ACCEPTED


def test_no_licence_is_said_by_hand_that_a_package_says_itself(found) -> None:
    said = {name for name in NOT_INSTALLED if (one := found.get(name)) and one.licence}
    wrong = {name for name in said if found[name].licence not in {NOT_INSTALLED[name], UNKNOWN}}
    assert wrong == set()


def test_every_dependency_is_pinned_where_it_is_tested() -> None:
    """An unpinned one would be another each day; the audit reads the pins too."""
    unpinned = {
        requirement.name
        for extra, requirements in declared().items()
        for requirement in requirements
        if normal(requirement.name) not in pins()
    }
    assert unpinned == set()
    assert all(re.fullmatch(r"[0-9][0-9A-Za-z.+!-]*", version) for version in pins().values())


def test_what_is_installed_is_what_is_pinned(found) -> None:
    pinned = pins()
    differs = {
        name: (one.version, pinned[name])
        for name, one in found.items()
        if one.licence is not None and name in pinned
        and (one.version or "").partition("+")[0] != pinned[name]
    }  # fmt: skip
    assert differs == {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "quark_launcher-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("quark_cli.py"), b"")
    return path


def test_the_bill_of_materials_is_valid_and_whole(found, wheel: Path) -> None:
    text = bill_of_materials(wheel, found)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    names = {component["name"]: component for component in bill["components"]}
    assert set(names) == set(found)
    for extra in HANDED_ON:
        assert {normal(requirement.name) for requirement in declared()[extra]} <= set(names)
    assert names["torch"]["version"] == pins()["torch"]
    assert names["msgspec"]["purl"] == f"pkg:pypi/msgspec@{pins()['msgspec']}"
    product = bill["metadata"]["component"]
    assert product["hashes"][0]["alg"] == "SHA-256"
    assert len(product["hashes"][0]["content"]) == 64
    needs = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert "botocore" in needs["boto3"]
    assert {"boto3", "torch"} <= set(needs["quark-launcher"])
    assert "botocore" not in needs["quark-launcher"]


def test_the_bill_of_the_same_wheel_is_the_same(found, wheel: Path) -> None:
    assert bill_of_materials(wheel, found) == bill_of_materials(wheel, packages())


class _Installed:
    def __init__(self, **fields: str | list[str]) -> None:
        self.metadata = self
        self._fields = fields

    def get(self, name: str) -> object:
        return self._fields.get(name.replace("-", "_"))

    def get_all(self, name: str) -> object:
        return self._fields.get(name)


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License_Expression": "MIT OR Apache-2.0", "License": "MIT"}, "MIT OR Apache-2.0"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"Classifier": ["License :: OSI Approved :: BSD License"]}, "BSD-3-Clause"),
        ({"License": "A" * 400}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_licences_are_read_from_whichever_field_says_them(fields, licence: str) -> None:
    assert licence_of(_Installed(**fields)) == licence  # type: ignore[arg-type] # has what is read


def test_the_audit_reads_every_pin_without_a_network() -> None:
    """Whether a version has a known weakness only a service can say: `make audit`."""
    command = ["--requirement", "constraints.txt", "--no-deps", "--disable-pip", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *command, "--progress-spinner", "off"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"would have audited {len(pins())} packages" in done.stderr
    assert "--strict" in (ROOT / "Makefile").read_text().partition("\naudit:")[2][:200]


@pytest.mark.parametrize("path", ["SECURITY.md", "docs/licences.md"])
def test_what_these_documents_name_is_there(path: str) -> None:
    text = (ROOT / path).read_text()
    named = set(re.findall(r"`((?:tests|tools_utilities|docs)/[\w./*]+)`", text))
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []
    targets = set(re.findall(r"make (\w+)", text))
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("target", ["licences", "sbom"])
def test_what_extras_need_is_named_too(target: str) -> None:
    """Without them the bill left sixteen packages out."""
    makefile = (ROOT / "Makefile").read_text()
    assert f"\n{target}: $(EXTRAS)\n" in makefile
    installed = re.search(r"\n\$\(EXTRAS\): \$\(STAMP\)\n(.*\n)*?.*'\.\[(.+)\]'", makefile)
    assert installed is not None
    extras = set(installed[2].split(","))
    # A tracker's own packages are dozens, and need accounts: they are named by their pins.
    assert extras == set(declared()) - {"", DEVELOPMENT, "wandb", "mlflow"}

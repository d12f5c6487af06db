"""The bill of materials of a wheel, as CycloneDX 1.6 in JSON.

    python -m release.bill_of_materials dist/quark_launcher-0.1.0-py3-none-any.whl > sbom.cdx.json

Names the wheel with its SHA-256, every package that an installation with all extras has, at the version
it was tested with, and who needs whom. The same wheel and packages give the same bytes.
"""

import hashlib
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.utils import parse_wheel_filename

from release.dependencies import UNKNOWN, Package, packages

_NAMES = uuid.UUID("0f5b1b8e-3a34-5c2f-9d0a-6f2f3c1b7a55")
"""What serial numbers are derived in."""
_LICENCE = "Apache-2.0"
_PRERELEASE = "+"
"""Begins what a build adds to a version (`2.13.0+cpu`): the release is the same."""


def bill_of_materials(wheel: Path, found: Mapping[str, Package]) -> str:
    """Return the bill of a wheel as JSON text."""
    name, version, _, _ = parse_wheel_filename(wheel.name)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    components = {one.name: _component(one) for one in found.values()}
    product = Component(
        name=name,
        version=str(version),
        type=ComponentType.APPLICATION,
        bom_ref=str(name),
        purl=PackageURL("pypi", name=name, version=str(version)),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[LicenseExpression(_LICENCE)],
    )
    bom = Bom(components=components.values(), serial_number=uuid.uuid5(_NAMES, digest))
    bom.metadata.component = product
    # The wheel's own time is no part of it; an equal bill must be equal.
    bom.metadata.timestamp = datetime.fromtimestamp(0, UTC)
    bom.register_dependency(product, [components[one.name] for one in found.values() if one.direct])
    for one in found.values():
        needed = [components[need] for need in one.needs if need in components]
        bom.register_dependency(components[one.name], needed)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    return outputter.output_as_string(indent=2) + "\n"


def _component(package: Package) -> Component:
    version = (package.version or "").partition(_PRERELEASE)[0] or None
    known = package.licence is not None and package.licence != UNKNOWN
    extras = [Property(name="quark:extra", value=extra) for extra in package.extras]
    return Component(
        name=package.name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=package.name,
        purl=PackageURL("pypi", name=package.name, version=version),
        licenses=[LicenseExpression(str(package.licence))] if known else [],
        properties=extras,
    )


def main() -> None:
    """Write the bill of the wheel that is named to stdout."""
    sys.stdout.write(bill_of_materials(Path(sys.argv[1]), packages()))


if __name__ == "__main__":
    main()

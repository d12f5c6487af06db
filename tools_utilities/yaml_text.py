"""YAML read by the 1.2 core rules: `1e-4` is a number, `no` and `010` are text, nothing is built.

PyYAML reads YAML 1.1 (`no` is False, `010` is eight, `1:30` is ninety, `1e-4` is text). Here a
plain scalar is null, true/false, a decimal number or text; a date is text. Duplicate keys, tags
that build objects, recursive aliases and documents that grow beyond `MAX_NODES` when their aliases
are followed are refused, each with its line.
"""

import re
from collections.abc import Callable
from typing import Any

import yaml

from tools_utilities.errors import UsageError

MAX_BYTES = 1_000_000
MAX_DIGITS = 4_000
"""Longest integer; Python's own limit is 4,300 digits."""
MAX_DEPTH = 100
MAX_NODES = 100_000
"""Scalars and collections a document may hold, aliases followed."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
# A leading zero is not decimal: `010` and `007` are written to be kept as they are.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf")}
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_TEXT_TAG = "tag:yaml.org,2002:str"
_PLAIN = "quark:plain"
_READ_TAGS = frozenset({_PLAIN, _TEXT_TAG, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


class _Loader(yaml.SafeLoader):
    """Composes nodes, and tells plain scalars without a tag from those that are meant as text."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TEXT_TAG
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call] # PyYAML


def load_yaml(text: str, *, source: str) -> Any:
    """Return the value of one YAML document; an empty one is None. `source` names it in errors.

    Raises:
        UsageError: not YAML, or something above; names source and line.
    """
    return _load(text, source, _core_value)


def check_yaml(text: str, *, source: str) -> None:
    """Refuse YAML that grows beyond measure when something else reads it: by depth, or by its aliases.

    Goes over the document's parts without building any.

    Raises:
        UsageError: not YAML, too deep, or too large once its aliases are followed.
    """
    sizes: dict[str, int] = {}
    open_nodes: list[list[Any]] = [[None, 0]]
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append([event.anchor, 0])
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                anchor, size = _size_of(event, open_nodes, sizes)
                if anchor is not None:
                    sizes[anchor] = size
                open_nodes[-1][1] += size
            if len(open_nodes) > MAX_DEPTH:
                raise UsageError(f"{source}: nested too deeply")
            if open_nodes[-1][1] > MAX_NODES:
                raise UsageError(f"{source}: more than {MAX_NODES:,} values, aliases followed")
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: {_reason(error)}", hint="It must be YAML.") from error


def _size_of(
    event: Any, open_nodes: list[list[Any]], sizes: dict[str, int]
) -> tuple[str | None, int]:
    """Return the anchor of a node that has ended, and how many it is."""
    if isinstance(event, yaml.AliasEvent):
        return None, sizes.get(str(event.anchor), MAX_NODES)  # not there yet: of what it stands in
    if isinstance(event, yaml.ScalarEvent):
        return event.anchor, 1
    anchor, size = open_nodes.pop()
    return anchor, size + 1


def dump_yaml(value: Any) -> str:
    """Return plain data as YAML for people and other programs: in order, scripts as blocks of lines."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as such."""


def _written(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_TEXT_TAG, text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _written)


def load_yaml_texts(text: str, *, source: str) -> Any:
    """As `load_yaml`, but every scalar that is not null stays the text that was written.

    For values whose type is known from elsewhere: `name: 1.50` is the text `1.50`.
    """
    return _load(text, source, _core_text)


def _core_text(text: str) -> Any:
    return None if text in _NULLS else text


def _core_value(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) <= MAX_DIGITS else text
    if _FLOAT.fullmatch(text):
        return float(text)
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    return float("nan") if text in _NAN else text


def _load(text: str, source: str, scalar: Callable[[str], Any]) -> Any:
    if len(text) > MAX_BYTES:
        raise UsageError(f"{source}: larger than {MAX_BYTES:,} characters")
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            return None
        _measure(root, source)
        return _Builder(source, scalar).build(root)
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: {_reason(error)}", hint="It must be YAML.") from error
    except RecursionError as error:
        raise UsageError(f"{source}: nested too deeply") from error


def _reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _measure(root: Any, source: str) -> None:
    """Refuse recursion, and more than MAX_NODES nodes counted with aliases followed."""
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        known = sizes.get(id(node))
        if known == 0:
            raise UsageError(f"{source}: line {_line(node)}: an alias of what it stands in")
        if known is not None:
            return known
        sizes[id(node)] = 0
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(size(key) + size(value) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(size(item) for item in node.value)
        sizes[id(node)] = total
        return total

    if size(root) > MAX_NODES:
        raise UsageError(f"{source}: more than {MAX_NODES:,} values once its aliases are followed")


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


class _Builder:
    def __init__(self, source: str, scalar: Callable[[str], Any]) -> None:
        self._source = source
        self._scalar = scalar

    def build(self, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar_value(node)
        self._check_tag(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item) for item in node.value]
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in built:
                raise UsageError(f"{self._source}: line {_line(key_node)}: {key!r} is there twice")
            built[key] = self.build(value_node)
        return built

    def _key(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise UsageError(f"{self._source}: line {_line(node)}: a key must be text")
        self._check_tag(node)
        return str(node.value)

    def _scalar_value(self, node: Any) -> Any:
        self._check_tag(node)
        return self._scalar(node.value) if node.tag == _PLAIN else node.value

    def _check_tag(self, node: Any) -> None:
        if node.tag not in _READ_TAGS:
            raise UsageError(
                f"{self._source}: line {_line(node)}: the tag {node.tag} is not read",
                hint="Write the value without a tag; quote it to make it text.",
            )

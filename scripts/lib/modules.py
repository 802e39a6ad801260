"""Finds dependencies between modules of a crate that form a cycle or contradict ORDER.

A module is a file or folder directly under `src`. It depends on each module that it names through
`crate::` or `super::`, also through the names that `lib.rs` re-exports. Comments, strings and test
modules at the end of a file are ignored.
"""

import re
from pathlib import Path

# Crates whose modules have an order: each module may use the modules in its set.
ORDER = {
    "pipeline": {
        "domain": set(),
        "budget": set(),
        "analyze": {"budget", "domain"},
        "cluster": {"domain"},
        "videos": {"budget", "analyze", "cluster", "domain"},
        "completion": {"domain"},
        "maintenance": set(),
        "reapply": {"domain"},
        "video_control": {"domain", "completion"},
        "ingest": {"domain", "analyze", "completion", "videos"},
        "crawl": {"domain", "completion", "ingest"},
        "worker": {"domain", "analyze", "cluster", "completion", "videos", "ingest", "crawl"},
    },
}


def code_of(path):
    """Returns the text of a file without its test module, comments and strings."""
    text = re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", path.read_text())[0]
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    return re.sub(r"//[^\n]*", "", text)


def names_after(text, prefix):
    """Yields the first name of each path that starts with `prefix`, groups in braces included.

    If the path continues after a name, the yielded name ends with `::`. It is then a module or a
    type, not a function.
    """
    for match in re.finditer(prefix + r"::(\{|[A-Za-z_]\w*(?:::)?)", text):
        if match.group(1) != "{":
            yield match.group(1)
            continue
        depth, start, at = 1, match.end(), match.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        flat = text[start : at - 1]
        while "{" in flat:
            flat = re.sub(r"\{[^{}]*\}", "", flat)
        for part in flat.split(","):
            if name := re.match(r"\s*([A-Za-z_]\w*(?:::)?)", part):
                yield name.group(1)


def exports(root):
    """Returns, for each name that `lib.rs` re-exports, the module from which it comes. A program has
    no `lib.rs`."""
    origin, library = {}, root / "lib.rs"
    code = code_of(library) if library.exists() else ""
    for match in re.finditer(r"\buse (?:self::)?(\w+)::([^;]+);", code):
        for name in re.findall(r"\w+", match.group(2)):
            origin.setdefault(name, match.group(1))
    return origin


def dependencies(root):
    """Returns the modules that each module of a crate depends on."""
    origin, sources = exports(root), []
    for path in sorted(root.rglob("*.rs")):
        parts = list(path.relative_to(root).with_suffix("").parts)
        if parts[-1] == "mod":
            parts.pop()
        is_test = parts[-1] == "tests" or parts[-1].endswith("_tests")
        if parts[0] not in ("lib", "main", "bin") and not is_test:
            sources.append((path, parts))
    found = {parts[0]: set() for _, parts in sources}
    for path, parts in sources:
        text = code_of(path)
        names = set(names_after(text, r"\bcrate"))
        names |= set(names_after(text, r"(?<!::)\b" + "::".join(["super"] * len(parts))))
        names -= {"super"}
        for name in names:
            module = name.removesuffix("::")
            # A function that `lib.rs` exports may have the name of a module.
            is_module = name != module and module in found
            found[parts[0]] |= {module} if is_module else {module, origin.get(module, module)}
    return {module: uses & found.keys() - {module} for module, uses in found.items()}


def cycles(uses):
    """Returns a shortest cycle for each module that is part of a cycle. Each cycle is returned
    once."""
    found = {}
    for module in sorted(uses):
        paths, seen = [[module]], set()
        for path in paths:
            if module in uses[path[-1]]:
                found.setdefault(frozenset(path), path)
                break
            following = sorted(uses[path[-1]] - seen)
            seen.update(following)
            paths += [[*path, name] for name in following]
    return found.values()


def wrong(crate, root):
    """Yields a line for each dependency that is not allowed."""
    uses = dependencies(Path(root))
    if order := ORDER.get(crate):
        for module, names in uses.items():
            if module not in order:
                yield f"{crate}: the module {module} has no place in the order of modules"
            for name in sorted(names - order.get(module, set())):
                yield f"{crate}: {module} must not use {name}"
    for cycle in cycles(uses):
        yield f"{crate}: modules use each other in a cycle: {' -> '.join([*cycle, cycle[0]])}"

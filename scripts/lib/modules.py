"""Finds circles between the modules of a crate, at every level, and uses that contradict ORDER.

A module is a file. It depends on each module that defines an item that it names through `crate::`,
`super::`, `self::` or a child module. Re-exports are followed to the definition; a re-export alone
is no dependency. Comments, strings and test modules at the end of a file are ignored.

At each level, a folder with its `mod.rs` counts as one module, which depends on everything that its
files depend on. Between a folder and its own files there is no rule.
"""

import re
from pathlib import Path

# Crates whose modules have an order: each module may use those before it.
ORDER = {
    "store": "db index store blobs faces images videos crawls people streams erasures watch collections keys".split(),
    "pipeline": "domain admission webhooks erasures images people crawls videos scan watch streams collections worker".split(),
}

TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|b?r(?P<hashes>#*)\".*?\"(?P=hashes)|b?\"(?:\\.|[^\"\\])*\"|"
    r"b?'(?:\\[^\n]+?|[^'\\\n])'|'\w+|(?P<name>(?:r#)?[A-Za-z_]\w*)|(?P<mark>::|\S)",
    re.S,
)


def code_of(path):
    """Returns the names and marks of a file, without its test module."""
    text = re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", path.read_text())[0]
    return [match.group() for match in TOKEN.finditer(text) if match.lastgroup in ("name", "mark")]


def use_tree(tokens, at, prefix=()):
    """Returns (path, name in this module) for each item of a `use` tree, and where the tree ends."""
    path = list(prefix)
    while True:
        if tokens[at] == "{":
            items, at = [], at + 1
            while tokens[at] != "}":
                found, at = use_tree(tokens, at, path)
                items += found
                at += tokens[at] == ","
            return items, at + 1
        path.append(tokens[at])
        at += 1
        if tokens[at] != "::":
            break
        at += 1
    if path[-1] == "self" and len(path) > 1:
        path.pop()
    if tokens[at] == "as":
        return [(tuple(path), tokens[at + 1])], at + 2
    return [(tuple(path), path[-1])], at


class Crate:
    """The modules of a crate, by their paths below `crate`."""

    def __init__(self, root):
        self.files = {}
        for path in sorted(root.rglob("*.rs")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
            is_test = parts and (parts[-1] == "tests" or parts[-1].endswith("_tests"))
            if parts[:1] != ("bin",) and not is_test:
                self.files.setdefault(parts, path)
        self.code = {module: code_of(path) for module, path in self.files.items()}
        self.exports = {
            module: {name: path for path, name, is_exported in self.uses(module) if is_exported}
            for module in self.files
        }

    def absolute(self, module, path):
        """Returns a path below `crate`, or None if it leads to another crate."""
        if path[0] == "crate":
            return path[1:]
        if path[0] in ("self", "super"):
            base = list(module)
            while path and path[0] in ("self", "super"):
                if path[0] == "super":
                    if not base:
                        return None
                    base.pop()
                path = path[1:]
            return (*base, *path)
        return (*module, *path) if (*module, path[0]) in self.files else None

    def uses(self, module):
        """Yields (path, name, whether it is exported) for each item of a `use` declaration."""
        tokens = self.code[module]
        for at, token in enumerate(tokens):
            if token == "use":
                before = tokens[max(0, at - 4) : at]
                is_exported = before[-1:] == ["pub"] or (before[-1:] == [")"] and "pub" in before)
                for path, name in use_tree(tokens, at + 1)[0]:
                    yield path, name, is_exported

    def origin(self, path, depth=0):
        """Returns the module that defines the item at a path."""
        for length in range(len(path), -1, -1):
            module, rest = path[:length], path[length:]
            if module in self.files:
                target = rest and depth < 9 and self.exports[module].get(rest[0])
                target = target and self.absolute(module, target)
                return self.origin((*target, *rest[1:]), depth + 1) if target else module
        return ()

    def dependencies(self, module):
        """Returns the modules that a module depends on, each with the name of one item."""
        tokens, found, names = self.code[module], {}, {}

        def add(path):
            if path not in self.files:
                found.setdefault(self.origin(path), path[-1])

        for path, name, is_exported in self.uses(module):
            if target := self.absolute(module, path):
                names[name] = target
                if not is_exported:
                    add(target)
        at = 0
        while at < len(tokens):
            if tokens[at] == "use":
                at = use_tree(tokens, at + 1)[1]
                continue
            path, first = [tokens[at]], at
            while tokens[at + 1 : at + 2] == ["::"] and re.match(r"\w", tokens[at + 2]):
                path.append(tokens[at + 2])
                at += 2
            at += 1
            if first and tokens[first - 1] in ("::", "."):
                continue
            if path[0] in names:
                add((*names[path[0]], *path[1:]))
            elif len(path) > 1 and (target := self.absolute(module, tuple(path))):
                add(target)
        found.pop(module, None)
        return found


def circles(uses):
    """Returns a shortest circle for each module that is part of one. Each circle is returned once."""
    found = {}
    for module in sorted(uses):
        paths, seen = [[module]], set()
        for path in paths:
            if module in uses[path[-1]]:
                found.setdefault(frozenset(path), path)
                break
            following = sorted(uses[path[-1]].keys() - seen)
            seen.update(following)
            paths += [[*path, name] for name in following]
    return found.values()


def at_level(dependencies, folder):
    """Returns what the modules of a folder use of each other: {module: {module: (file, item)}}."""
    depth, uses = len(folder), {}
    for file, targets in dependencies.items():
        if file[:depth] == folder and len(file) > depth:
            own = uses.setdefault(file[: depth + 1], {})
            for target, item in targets.items():
                other = target[: depth + 1]
                if target[:depth] == folder and len(target) > depth and other != file[: depth + 1]:
                    own.setdefault(other, (file, item))
    return uses


def wrong(crate, root):
    """Yields a line for each circle and for each use that is not allowed."""
    modules = Crate(Path(root))
    dependencies = {module: modules.dependencies(module) for module in modules.files}
    for folder in sorted({module[:depth] for module in modules.files for depth in range(len(module))}):
        uses = at_level(dependencies, folder)
        if crate in ORDER and not folder:
            order = ORDER[crate]
            for (module,), names in uses.items():
                if module not in order:
                    yield f"{crate}: the module {module} has no place in the order of modules"
                    continue
                for (name,), (file, item) in names.items():
                    if name not in order[: order.index(module)]:
                        yield f"{crate}: {'::'.join(file)} must not use {name} (it names {item})"
        for circle in circles(uses):
            steps = []
            for module, other in zip(circle, [*circle[1:], circle[0]]):
                file, item = uses[module][other]
                steps.append(f"{modules.files[file]} names `{item}` of {'::'.join(other)}")
            advice = "move one of these items" if len(circle) > 2 else "join the two modules, or move an item"
            yield f"{crate}: modules use each other in a circle: {'; '.join(steps)}. {advice.capitalize()}."

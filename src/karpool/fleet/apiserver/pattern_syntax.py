"""Read RE2 regular expression syntax, as Go's regexp package writes it.

Left out: named scripts (`\\p{Greek}`), `\\C` and the ungreedy flag `U`. What RE2 itself leaves
out (look-around, back-references) is an error here too. Nesting, length and repetition are bounded.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

PATTERN_MAX = 4096
REPEAT_MAX = 1000  # as RE2
DEPTH_MAX = 100

Member = Callable[[str], bool]
Ranges = list[tuple[str, str]]


class BadPattern(ValueError):
    """The pattern is not RE2 syntax, or exceeds a bound."""


@dataclass(frozen=True, slots=True)
class Expression:
    """`kind` is char, cat, alt, repeat or assert; the other fields follow from it."""

    kind: str
    parts: "tuple[Expression, ...]" = ()
    member: Member | None = None
    low: int = 0
    high: int | None = None
    greedy: bool = True
    what: str = ""


def parse(text: str) -> Expression:
    """Raises BadPattern."""
    if len(text) > PATTERN_MAX:
        raise BadPattern(f"is longer than {PATTERN_MAX} characters")
    return _Parser(text).parse()


_DIGIT: Ranges = [("0", "9")]
_WORD: Ranges = [("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")]
_SPACE: Ranges = [("\t", "\n"), ("\f", "\r"), (" ", " ")]
_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, Ranges] = {
    "alnum": [("0", "9"), ("A", "Z"), ("a", "z")],
    "alpha": [("A", "Z"), ("a", "z")],
    "ascii": [("\0", "\x7f")],
    "blank": [("\t", "\t"), (" ", " ")],
    "cntrl": [("\0", "\x1f"), ("\x7f", "\x7f")],
    "digit": _DIGIT,
    "graph": [("!", "~")],
    "lower": [("a", "z")],
    "print": [(" ", "~")],
    "punct": [("!", "/"), (":", "@"), ("[", "`"), ("{", "~")],
    "space": [("\t", "\r"), (" ", " ")],
    "upper": [("A", "Z")],
    "word": _WORD,
    "xdigit": [("0", "9"), ("A", "F"), ("a", "f")],
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES = frozenset("CLMNPSZ")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.fold = self.multiline = self.dot_all = False

    def parse(self) -> Expression:
        expression = self._alternatives()
        if self.at < len(self.text):
            raise BadPattern(f"has an unmatched ) at {self.at}")
        return expression

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise BadPattern("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def _alternatives(self) -> Expression:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Expression("alt", tuple(branches))

    def _sequence(self) -> Expression:
        parts: list[Expression] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return Expression("cat", tuple(parts))

    def _repeated(self) -> Expression:
        start = self.at
        atom = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return atom
        if self.text[start] in "*+?" and self.text[start : self.at] != "":
            raise BadPattern(f"repeats nothing at {start}")
        greedy = not self._take("?")
        if self._bounds() is not None:
            raise BadPattern(f"repeats a repetition at {start}")
        return Expression("repeat", (atom,), low=bounds[0], high=bounds[1], greedy=greedy)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        if self._peek() == "{":
            return self._counted()
        return None

    def _counted(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}`, `{n,m}`; anything else after a brace is the brace itself."""
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : end].partition(",") if end > 0 else ("", "", "")
        if not (low.isascii() and low.isdigit() and (high == "" or (high.isascii() and high.isdigit()))):
            return None
        if len(low) > 4 or len(high) > 4 or int(low) > REPEAT_MAX or int(high or low) > REPEAT_MAX:
            raise BadPattern(f"repeats more than {REPEAT_MAX} times at {self.at}")
        if high and int(high) < int(low):
            raise BadPattern(f"has a repetition that ends before it begins at {self.at}")
        self.at = end + 1
        return int(low), int(high) if high else None if comma else int(low)

    def _atom(self) -> Expression:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._char(self._class())
            case ".":
                return self._char(_any if self.dot_all else _any_but_newline)
            case "^":
                return Expression("assert", what="m^" if self.multiline else "^")
            case "$":
                return Expression("assert", what="m$" if self.multiline else "$")
            case "*" | "+" | "?":
                raise BadPattern(f"repeats nothing at {self.at - 1}")
            case "\\":
                return self._escape()
        return self._char(_ranges([(character, character)]))

    def _char(self, member: Member) -> Expression:
        if self.fold:
            exact = member
            member = lambda c: exact(c) or exact(c.lower()) or exact(c.upper())  # noqa: E731
        return Expression("char", member=member)

    def _group(self) -> Expression:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise BadPattern(f"nests groups deeper than {DEPTH_MAX}")
        saved = self.fold, self.multiline, self.dot_all
        if self._take("?") and self._group_prefix():
            self.depth -= 1  # (?flags) lasts until the enclosing group ends
            return Expression("cat")
        inner = self._alternatives()
        if not self._take(")"):
            raise BadPattern("has an unmatched (")
        self.fold, self.multiline, self.dot_all = saved
        self.depth -= 1
        return inner

    def _group_prefix(self) -> bool:
        """Read what follows `(?`; True when it was only flags."""
        if self._take("P<") or self._take("<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise BadPattern(f"has a bad group name at {self.at}; look-behind is not supported")
            self.at = end + 1
            return False
        value = True
        while (flag := self._next()) not in ":)":
            match flag:
                case "-":
                    value = False
                case "i":
                    self.fold = value
                case "m":
                    self.multiline = value
                case "s":
                    self.dot_all = value
                case _:
                    raise BadPattern(f"uses (?{flag} at {self.at - 1}, which is not supported")
        return flag == ")"

    def _escape(self) -> Expression:
        character = self._next()
        if character == "A":
            return Expression("assert", what="^")
        if character == "z":
            return Expression("assert", what="$")
        if character in "bB":
            return Expression("assert", what=character)
        if character == "Q":
            return self._quoted()
        if (member := self._escaped_set(character)) is not None:
            return self._char(member)
        literal = self._escaped_character(character)
        return self._char(_ranges([(literal, literal)]))

    def _quoted(self) -> Expression:
        end = self.text.find("\\E", self.at)
        quoted = self.text[self.at : end if end >= 0 else len(self.text)]
        self.at = end + 2 if end >= 0 else len(self.text)
        return Expression("cat", tuple(self._char(_ranges([(c, c)])) for c in quoted))

    def _escaped_set(self, character: str) -> Member | None:
        if (ranges := _PERL.get(character.lower())) is not None:
            return _ranges(ranges) if character.islower() else _not(_ranges(ranges))
        if character not in "pP":
            return None
        name = self._next()
        negated = character == "P"
        if name == "{":
            end = self.text.find("}", self.at)
            name, self.at = self.text[self.at : end], end + 1
            if name.startswith("^"):
                name, negated = name[1:], not negated
        if name[:1] not in _CATEGORIES or len(name) > 2:
            raise BadPattern(f"uses \\p{{{name}}}, which is not supported")
        member: Member = lambda c: unicodedata.category(c).startswith(name)  # noqa: E731
        return _not(member) if negated else member

    def _escaped_character(self, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "x":
            return self._hexadecimal()
        if character == "0" or (character in "1234567" and self._peek() in tuple("01234567")):
            digits = character
            while len(digits) < 3 and self._peek() in tuple("01234567"):
                digits += self._next()
            return chr(int(digits, 8))
        if character.isascii() and not character.isalnum():
            return character
        raise BadPattern(f"has an unknown escape \\{character} at {self.at - 2}")

    def _hexadecimal(self) -> str:
        if self._take("{"):
            end = self.text.find("}", self.at)
            digits, self.at = self.text[self.at : end], end + 1
        else:
            digits, self.at = self.text[self.at : self.at + 2], self.at + 2
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise BadPattern(f"has a bad hexadecimal escape at {self.at}") from None

    def _class(self) -> Member:
        negated = self._take("^")
        ranges: Ranges = []
        members: list[Member] = []
        first = True
        while first or self._peek() != "]":
            first = False
            if self._take("[:"):
                members.append(self._posix())
                continue
            if self._peek() == "\\":
                self.at += 1
                character = self._next()
                if (member := self._escaped_set(character)) is not None:
                    members.append(member)
                    continue
                low = self._escaped_character(character)
            else:
                low = self._next()
            ranges.append((low, self._range_end(low)))
        self.at += 1
        if ranges:
            members.append(_ranges(ranges))
        member = members[0] if len(members) == 1 else (lambda c: any(m(c) for m in members))
        return _not(member) if negated else member

    def _range_end(self, low: str) -> str:
        if self._peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        self.at += 1
        high = self._next()
        if high == "\\":
            high = self._escaped_character(self._next())
        if high < low:
            raise BadPattern(f"has a range {low}-{high} that ends before it begins")
        return high

    def _posix(self) -> Member:
        end = self.text.find(":]", self.at)
        name = self.text[self.at : end] if end >= 0 else ""
        ranges = _POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise BadPattern(f"has an unknown class [:{name}:]")
        self.at = end + 2
        return _not(_ranges(ranges)) if name.startswith("^") else _ranges(ranges)


def _any(character: str) -> bool:
    return character != ""


def _any_but_newline(character: str) -> bool:
    return character != "\n"


def _ranges(ranges: Ranges) -> Member:
    chosen = tuple(ranges)
    if len(chosen) == 1 and chosen[0][0] == chosen[0][1]:
        return chosen[0][0].__eq__
    return lambda character: any(low <= character <= high for low, high in chosen)


def _not(member: Member) -> Member:
    return lambda character: not member(character)

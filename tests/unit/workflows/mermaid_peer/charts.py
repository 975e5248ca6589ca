# ruff: noqa: E501, Q003, RUF001, S311 - tables to be read as tables; random on purpose
"""Random charts, whole and slightly broken, put together from what people and nobody write."""

from __future__ import annotations

from random import Random

IDS = [
    "a", "b", "c", "start", "end_node", "End", "v", "v1", "x", "o1", "xray", "oscar", "a-b", "a.b",
    "1", "12b", "a,b", "a:b", "a&b", "été", "Ω", "你好", "default", "class_a", "classify", "subgraph1",
    "graphs", "a_end", "endfoo", "backend", "style1", "styler", "href", "call", "callx", "click",
    "flowchart1", "_self", "_x", "a+b", "a*b", "a!b", "a?b", "$a", "a'b", "a%b", "a/b", "a\\b", "50%",
    "direction", "TB", "interpolate", "L_a_b_0", "e1", "-a", "a-", "#a", "a#b", "%", "~a", "1end",
    "a:end", "graph", "end", "End-x", "end-x", "v-a", "swimlane-beta", "a=b", "a==b", "×", "😀",
    "accTitle", "x-a", "o.a", "subgraph", "class", "a\"b", "a.-b", "a..b", "`a`", "a;b", "^", "<", "a@b",
]  # fmt: skip
TEXTS = [
    "x", "Hello", "two words", " padded ", "x < 5 && y > 3", "a/b", "50%", "x: y", "x = y", "é ß",
    "line1<br/>line2", "line1\nline2", "a - b", "a--b", "#35; #amp;", "say #quot;hi#quot;", "{{state.x}}",
    "f(x)", "x [y]", "a | b", "~~~", "x ~~~ y", "end", "subgraph", "graph", "1.", "v1.2", "\"", "'", "`",
    "**bold**", "", " ", "direction LR", "the direction LR of", "x;y", "%% no", "@", "x@y.z", "a\\nb",
    "<b class=\"k\">t</b>", "x==y", "a-.-b", "style a fill:#fff;", "😀", "-", "x-", "/", "\\", "?", "=",
    "box", "x\n\n  y", "\t", "!)", "a {b", "}", "}  \n y", "click here", "call f", "%%{init}%%", "x%%y",
    "&amp;", "#", ";", "\u00a0x", "x\u2028y",
]  # fmt: skip
SIMPLE = ["x", "Hello", "two words", "Is it ok?", "a/b", "x: y", "A & B", "done 50%", "v2", "end"]
BRACKETS = [
    ("[", "]"), ("(", ")"), ("([", "])"), ("[[", "]]"), ("[(", ")]"), ("((", "))"), ("(((", ")))"),
    ("{", "}"), ("{{", "}}"), (">", "]"), ("[/", "/]"), ("[\\", "\\]"), ("[/", "\\]"), ("[\\", "/]"),
    ("(-", "-)"), ("[|a:b|", "]"),
]  # fmt: skip
LINKS = [
    "-->", "--->", "---->", "---", "----", "-----", "--o", "--x", "<-->", "o--o", "x--x", "-.->",
    "-..->", "-...->", ".->", "-.-", "-.-o", "-.-x", "<-.->", "==>", "===", "====>", "==o", "==x",
    "<==>", "~~~", "~~~~", "<---", "->", "=>", "<--", "o--", "-->>", "..>", "-.>", "--", "==", "-.",
    "x-->", "o==>", "x-.->", "--------------->", "-............->", "o-.-o", "x==x", "<--x", "x--o", "=",
    ".-", "..-", "~~", "- ->", "-- ->", "o---o", "<-", "<==", "--|>",
]  # fmt: skip
COMMON_LINKS = ["-->", "---", "-.->", "==>", "--->", "--o", "--x", "<-->", "~~~", "-.-", "==="]
HALVES = [
    ("--", "-->"), ("--", "---"), ("==", "==>"), ("-.", ".->"), ("-.", "-.->"), ("--", "--x"), ("<--", "-->"),
    ("x--", "--x"), ("o--", "--o"), ("x--", "-->"), ("==", "-->"), ("--", "->"), ("-.", ".-"), ("<-.", ".->"),
    ("<==", "==>"), ("--", "--->"), ("==", "===="), ("--", "x--x"), ("--", "--"), ("-.", "-..->"), ("==", "x==>"),
]  # fmt: skip
NAMES = [
    "circle", "hexagon", "hex", "rect", "rectangle", "diam", "manual-file", "Foo", "foo", "sm_circ", "icon",
    "doublecircle", "CIRCLE", "lean-r", "imageSquare", "st-doc", "bang", "Circle", "labelRect",
]  # fmt: skip
PROPERTIES = [
    "shape: {n}", "shape: {n}, label: \"{t}\"", "label: \"{t}\"", "label: {t}", "\n  shape: {n}\n  label: \"{t}\"\n",
    "shape:{n}", "", " ", "\n", "animate: true", "label: 5", "label: 1.50", "label: true", "label: null",
    "icon: \"fa:x\"", "icon: x, label: \"{t}\"", "shape: {n}, shape: {n}", "label: '{t}'", "shape: [{n}]",
    "view: collapsed", "\n- a\n", "foo", "\nfoo\n", "shape: \"{n}\"", "curve: linear,", "img: \"u\", w: 3",
    "label: \"a\n   b\"", "a: {n}}", "\nnull\n", "label: [a]", "shape : {n}", "label: \"x^y\"", "label: x^y",
]  # fmt: skip
SIDE = [
    "style {i} fill:#f9f,stroke:#333,stroke-width:4px", "style {i} fill:#f9f;", "style {i},{j} fill:red",
    "style {i}", "style  {i} fill:red", "style {i} color:#fff,  x:1 2 3", "linkStyle 0 stroke:#333",
    "linkStyle default stroke:red", "linkStyle 0,1 stroke:#ff3,stroke-width:4px;", "linkStyle 00 a:b",
    "linkStyle 9 stroke:red", "linkStyle 0 interpolate basis", "linkStyle default interpolate basis a:b",
    "classDef k fill:#f96", "classDef k,l fill:#f96,stroke:#333;", "classDef default fill:red", "class {i} k",
    "class {i},{j} k", "class {i} k;", "class {i}", "class {i} k ", "click {i} \"http://x;y\" _blank",
    "click {i} \"http://x\" \"tip\"", "click {i} \"u\" \"tip\" _self", "click {i} href \"u\"",
    "click {i} href \"u\" \"t\" _top", "click {i} call f()", "click {i} call f(1, 2) \"t\"", "click {i} f",
    "click {i} f \"tip\"", "click {i}", "click {i} call f", "accTitle: a title", "accDescr: some; text",
    "accDescr {{ more\n text }}", "accDescr {{}}", "direction LR", "direction TD", "  direction  BT  ",
    "direction XX", "%% comment", "   %% comment {i} --> {j}", "%%", "%%{{init: {{}}}}%%", "%%{{x", "%% {{x}}",
    "accTitle:x", "style {i} fill:#f9f; {j}", "class {i} default", "classDef end a:b", "direction\nLR", "end",
    "classDef k fill:#f96;stroke:#333;", "%%{{wrap}}%%", "%%{{init: foo bar}}%%", "&", "{i} -->", "--> {i}",
    "style {i} a:(b)", "style {i} a:-1", "linkStyle 0, 1 a:b", "click {i} \"\"", "interpolate", "subgraph",
]  # fmt: skip
HEADERS = [
    "flowchart TD\n", "graph LR\n", "flowchart\n", "flowchart-elk TB\n", "graph TD;", "graph <\n", "graph >\n",
    "graph ^\n", "graph v\n", "flowchart BR\n", "flowchart   RL  \n", "\n\n flowchart TD\n\n", "graph TD ;",
    "%% note\nflowchart LR\n", "%%{init: {\"theme\": \"dark\"}}%%\ngraph BT\n", "---\ntitle: x\n---\nflowchart TD\n",
    "---\n\n---\ngraph\n", "flowchart td\n", "flowchart LR a\n", "graph", "flowchart TD", "  ---\n  a: b\n  ---\ngraph TD\n",
    "---\na: [\n---\nflowchart TD\n", "flowchart\tLR\r\n", "graph TDx\n", "sequenceDiagram\n", "flowcharts\n",
    "%%\nflowchart TD\n", "\n---\na: b\n---\ngraph TD\n", "graph TD\n;\n", "---\na: b\na: c\n---\ngraph\n",
]  # fmt: skip


class Composer:
    """Writes charts; *wildness* is the share of odd pieces."""

    def __init__(self, random: Random, wildness: float) -> None:
        self._random = random
        self._wildness = wildness

    def _odd(self) -> bool:
        return self._random.random() < self._wildness

    def chart(self) -> str:
        random = self._random
        header = random.choice(HEADERS) if self._odd() else "flowchart TD\n"
        count = random.randint(1, 6)
        text = header + "".join(self._statement(0) for _ in range(count))
        return broken(random, text) if self._odd() else text

    def _statement(self, depth: int) -> str:
        random = self._random
        kind = random.random()
        end = random.choice(["\n", ";", " \n", ";;", "\r\n", "\n\n"]) if self._odd() else "\n"
        indent = " " * random.randrange(3)
        if kind < 0.15 and depth < 3:
            return indent + self._subgraph(depth) + end
        if kind < 0.3:
            names = {"i": self._id(), "j": self._id()}
            side = random.choice(SIDE if self._odd() else SIDE[:1] + SIDE[13:14] + SIDE[39:41])
            return indent + side.format(**names) + end
        return indent + self._chain() + end

    def _subgraph(self, depth: int) -> str:
        random = self._random
        title = random.choice(TEXTS if self._odd() else SIMPLE)
        head = random.choice(
            [self._id(), f"{self._id()} [{title}]", f'{self._id()}["{title}"]', title, f'"{title}"',
             f"{self._id()}[{title}]", f'"`{title}`"', f"{self._id()} {self._id()}[{title}]"]
        )  # fmt: skip
        body = "".join(self._statement(depth + 1) for _ in range(random.randint(0, 3)))
        blank = random.choice(["  ", "", "\t"]) if self._odd() else " "
        close = random.choice(["end ", "", "END", "end x"]) if self._odd() else "end"
        return f"subgraph{blank}{head}\n{body}{close}"

    def _chain(self) -> str:
        text = self._group()
        for _ in range(self._random.choice([0, 1, 1, 1, 2, 3])):
            text += self._link() + self._group()
        return text

    def _group(self) -> str:
        random = self._random
        nodes = [self._node() for _ in range(random.choice([1, 1, 1, 1, 2, 3]))]
        return (random.choice(["&", " &", "  &  ", " & "]) if self._odd() else " & ").join(nodes)

    def _id(self) -> str:
        return self._random.choice(
            IDS if self._odd() else ["a", "b", "c", "d", "n1", "my_node", "É"]
        )

    def _text(self) -> str:
        random = self._random
        text = random.choice(TEXTS if self._odd() else SIMPLE)
        kind = random.randrange(4)
        if kind == 0:
            return f'"{text}"'
        if kind == 1 and self._odd():
            return random.choice(
                [
                    f'"`{text}`"',
                    f' "{text}"',
                    f'"{text}" ',
                    f'"{text}" x',
                    f'x "{text}"',
                    f'""{text}',
                ]
            )
        return text

    def _node(self) -> str:
        random = self._random
        text = self._id()
        if random.random() < 0.5:
            opening, closing = random.choice(BRACKETS)
            if self._odd() and random.random() < 0.3:
                closing = random.choice(BRACKETS)[1]
            blank = " " if self._odd() and random.random() < 0.2 else ""
            text += f"{blank}{opening}{self._text()}{closing}"
        if self._odd() and random.random() < 0.3:
            text += ":::" + random.choice(["k", "my-class", "a:::b", ""])
        if random.random() < 0.12:
            form = random.choice(PROPERTIES if self._odd() else PROPERTIES[:3])
            name = random.choice(NAMES if self._odd() else NAMES[:5])
            inner = form.replace("{n}", name).replace(
                "{t}", random.choice(TEXTS if self._odd() else SIMPLE)
            )
            text += "@{ " + inner + " }"
        return text

    def _link(self) -> str:
        random = self._random
        kind = random.random()
        name = random.choice(["e1@", "e2@", "a@b@", "@"]) if self._odd() and kind < 0.3 else ""
        before, after = (
            (random.choice([" ", "", "\n", "  "]), random.choice([" ", "", "\n", "  "]))
            if self._odd()
            else (" ", " ")
        )
        if kind < 0.3:
            start, end = random.choice(HALVES if self._odd() else HALVES[:5])
            middle = random.choice([" ", ""])
            return f"{before}{name}{start}{middle}{self._text()}{middle}{end}{after}"
        link = random.choice(LINKS if self._odd() else COMMON_LINKS)
        label = ""
        if kind < 0.6:
            label = (
                random.choice(["", " "])
                + f"|{self._text()}|"
                + random.choice(["", "", " ", "  "] if self._odd() else [""])
            )
        return f"{before}{name}{link}{label}{after}"


def broken(random: Random, text: str) -> str:
    """Return *text* with one character or piece taken out, put in, or doubled."""
    at = random.randrange(len(text) + 1)
    kind = random.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + random.choice(' \n;-=.>x()[]{}|"`@&%:#~/\\,vo<\t') + text[at:]
    if kind == 2:
        return text[:at] + text[random.randrange(at, len(text) + 1) :]
    end = min(len(text), at + random.randrange(6))
    return text[:at] + text[at:end] * 2 + text[end:]


def soup(random: Random) -> str:
    """Return a chart of pieces that need not fit."""
    pools = [IDS, LINKS, TEXTS, SIDE, [part for pair in BRACKETS for part in pair], COMMON_LINKS]
    pools += [
        [" ", "\n", ";", " & ", "|", '"', "@{", "}", ":::", "subgraph a\n", "\nend\n", "`"]
    ] * 2
    pieces = [random.choice(random.choice(pools)) for _ in range(random.randint(1, 7))]
    return "flowchart TD\n" + random.choice(["", " "]).join(pieces)


def charts(seed: int, count: int, known: list[str]) -> list[str]:
    """Return *count* charts: composed (tame to wild), *known* ones with a flaw or two, soup."""
    random = Random(seed)
    answer = []
    for index in range(count):
        if index % 4 == 0 and known:
            text = broken(random, random.choice(known))
            answer.append(broken(random, text) if random.random() < 0.3 else text)
        elif index % 4 == 1:
            answer.append(soup(random))
        else:
            answer.append(Composer(random, 0.35 * (index / count) ** 4).chart())
    return answer

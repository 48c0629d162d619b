from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.handlers.parser import DEEPEST, parse_expression
from gdb_optprobe.handlers.source import Fragment

from .shown import shown


def is_type(name: str) -> bool:
    return name in ("u64", "pid_t")


def parsed(text: str) -> str:
    return shown(parse_expression(Fragment.whole(text), is_type))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b * c - d", "[[a+[b*c]]-d]"),
        ("a - b - c", "[[a-b]-c]"),
        ("a || b && c | d ^ e & f == g < h << i + j * k", "[a||[b&&[c|[d^[e&[f==[g<[h<<[i+[j*k]]]]]]]]]]"),
        ("a * b + c << d < e == f & g ^ h | i && j || k", "[[[[[[[[[[a*b]+c]<<d]<e]==f]&g]^h]|i]&&j]||k]"),
        ("a % b / c >> d >= e != f > g <= h", "[[[[[a%b]/c]>>d]>=e]!=[[f>g]<=h]]"),
        ("a ? b : c ? d : e", "[a?b:[c?d:e]]"),
        ("a ? b ? c : d : e", "[a?[b?c:d]:e]"),
        ("a || b ? c : d", "[[a||b]?c:d]"),
        ("-!~+*&x", "[-[![~[+[*[&x]]]]]]"),
        ("*p->a.b[3]", "[*[[[p->a].b]@3]]"),
        ("&a[i + 1]", "[&[a@[i+1]]]"),
        ("-a * b", "[[-a]*b]"),
        ("a - -b", "[a-[-b]]"),
        ("(a + b) * c", "[[a+b]*c]"),
        ("(a) - b", "[a-b]"),
        ("(u64) - b", "[<u64>[-b]]"),
        ("(u64)a * b", "[[<u64>a]*b]"),
        ("(unsigned char)a->b", "[<unsigned char>[a->b]]"),
        ("(int long unsigned)x", "[<unsigned long>x]"),
        ("(const struct file *)$arg1", "[<struct file*>$arg1]"),
        ("((struct file *const *)p)[2]->f_mode", "[[[<struct file**>p]@2]->f_mode]"),
        ("(struct list_head *)(enum x)y", "[<struct list_head*>[<enum x>y]]"),
        ("(unknown_t)x", "[<unknown_t>x]"),
        ("(unknown *)(x)", "[<unknown*>x]"),
        ("(a) * (b)", "[a*b]"),
        ("(a) & b", "[a&b]"),
        ("sizeof(int) + 1", "[sizeof[int]+1]"),
        ("sizeof (struct file) * 2", "[sizeof[struct file]*2]"),
        ("sizeof x->y + 1", "[sizeof[[x->y]]+1]"),
        ("sizeof(x) + 1", "[sizeof[x]+1]"),
        ("sizeof(u64 *)", "sizeof[u64*]"),
        ("sizeof *p", "sizeof[[*p]]"),
        ("(pid_t)sizeof(x)", "[<pid_t>sizeof[x]]"),
        ('$comm == "dd"', "[$comm=='dd']"),
        ('str(p + 1) != "a\\n"', r"[str[[p+1]]!='a\n']"),
        ("str + 1", "[str+1]"),
        ("$percpu(runqueues).nr", "[percpu[runqueues].nr]"),
        ("'a' + 0x10UL", "[c97+16ul]"),
        ("count == 7777", "[count==7777]"),
    ],
)
def test_trees(text: str, tree: str) -> None:
    assert parsed(text) == tree


@pytest.mark.parametrize(
    ("text", "message", "marked", "hint"),
    [
        ("", "an expression is missing before the end", " ", ""),
        ("a +", "an expression is missing before the end", " ", ""),
        ("a + * ", "an expression is missing before the end", " ", ""),
        ("a b", "'b' is not expected here", "b", "an operator"),
        ("a ? b", "':' is missing before the end", " ", ""),
        ("(a", "'(' is never closed", "(", ""),
        ("a[1", "'[' is never closed", "[", ""),
        ("(a]", "')' is missing before ']'", "]", ""),
        ("a)", "')' is not expected here", ")", "an operator"),
        ("a->", "a member's name is missing before the end", " ", ""),
        ("a->3", "a member's name is missing before '3'", "3", ""),
        ("a = 1", "an expression assigns nothing", "=", "=="),
        ("a += 1", "an expression changes nothing", "+=", ""),
        ("a++", "an expression changes nothing", "++", ""),
        ("--a", "an expression changes nothing", "--", ""),
        ("f(x)", "functions cannot be called", "f", "str(p)"),
        ("$foo(x)", "functions cannot be called", "$foo", "str(p)"),
        ("{int} p", "'{TYPE} ADDRESS' is not supported", "{", "*(TYPE *)ADDRESS"),
        ("a@2", "'@' is not supported", "@", ""),
        ("int", "the type 'int' is not expected here", "int", "a cast"),
        ("(struct)x", "a name is missing after 'struct'", ")", ""),
        ("(const)x", "a type is missing before ')'", ")", ""),
        ("(char long)x", "'char long' is no type", "char long", "unsigned char"),
        ("(int (*)(void))p", "types of arrays and functions are not supported", "(", "pointer"),
        ("sizeof(int[3])", "types of arrays and functions are not supported", "[", "pointer"),
        ("a, b", "',' is not expected here", ",", ""),
        ("(u64 x)", "'x' is not expected in a type", "x", ""),
    ],
)
def test_what_is_no_expression_is_pointed_at(text: str, message: str, marked: str, hint: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        parsed(text)
    first, line, carets = caught.value.message.split("\n")
    at = carets.index("^")
    assert first.startswith(message)
    assert line[at:].ljust(1)[: len(carets.strip())] == marked
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["(" * 500 + "a" + ")" * 500, "~" * 500 + "a", "a" + "+a" * 500, "a?a:" * 300 + "a"])
def test_what_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(OptprobeError, match="too large"):
        parsed(text)


def test_what_is_not_too_deep_is_not() -> None:
    assert parsed("a" + "||a" * (DEEPEST - 1)).startswith("[" * (DEEPEST - 1))
    assert parsed("(" * 40 + "a" + ")" * 40) == "a"


def test_every_node_knows_its_place() -> None:
    line = "f if a + (b->c) do count"
    found = parse_expression(Fragment(line, 5, 15), is_type)
    assert found.where.text == "a + (b->c)"

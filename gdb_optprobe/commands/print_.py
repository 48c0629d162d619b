from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.commands.base import Subcommand
from gdb_optprobe.commands.locations import expression_words
from gdb_optprobe.commands.output import Output
from gdb_optprobe.errors import OptprobeError


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    json: bool = False


class _OfExpression(Subcommand[Expression]):
    example: str

    def parse(self, text: str) -> Expression:
        if not text.strip():
            raise OptprobeError(f"no expression to {self.word}", self.example)
        return Expression(text.strip())

    def candidates(self, text: str) -> Sequence[str]:
        return expression_words(text)


class PrintCommand(_OfExpression):
    """Print the value of an expression where the guest is stopped, by the kernel's own types.

    optprobe print EXPR

    An expression is what a condition has: parameters at a function's entry,
    members, casts, $task, $comm, registers of the selected frame. No vmlinux is
    needed. Structs are printed with their members.

    Examples:
      optprobe print file->f_path.dentry->d_name.name
      optprobe print *$task->mm
      optprobe print str(filename)
    """

    word = "print"
    example = "optprobe print $task->comm"

    def run(self, args: Expression, out: Output) -> None:
        out.lines(self.session.value_of(args.text))


class TypeCommand(_OfExpression):
    """Print a type of the kernel's, or an expression's, with offsets and sizes of members.

    optprobe type NAME|EXPR

    Examples:
      optprobe type struct file
      optprobe type file->f_path
      optprobe type enum pid_type
    """

    word = "type"
    example = "optprobe type struct file"

    def run(self, args: Expression, out: Output) -> None:
        out.lines(self.session.type_of(args.text))

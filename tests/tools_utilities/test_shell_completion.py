"""Completion for shells: the files, and bash itself asked what it completes."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from knowledge_hub.hub import KnowledgeHub
from tools_utilities.errors import UsageError
from tools_utilities.scripts import quark_cli
from tools_utilities.scripts.quark_cli import run_program
from tools_utilities.shell_completion import COMMANDS, PLACES, completion_script, install_completion

FLAGS = ("--plan", "--override")


@pytest.mark.parametrize("shell", sorted(PLACES))
def test_the_program_installs_it(tmp_path, monkeypatch, capsys, shell):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / PLACES[shell]
    for _ in range(2):  # twice changes nothing
        assert run_program(["--install-completion", shell]) == 0
        assert capsys.readouterr().out == f"installed {path}\n"
    text = path.read_text()
    assert "from-plan" in text
    assert "train" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


def test_bash_completes_with_it(tmp_path):
    path, _ = install_completion("bash", FLAGS, tmp_path)
    asked = f"source {path}; COMP_WORDS=(quark {{word}}); COMP_CWORD=1; _quark; echo ${{{{COMPREPLY[@]}}}}"
    for word, expected in (("--p", "--plan"), ("tra", "train"), ("nothing", "")):
        done = subprocess.run(
            ["bash", "-c", asked.format(word=word)], check=True, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with runs and awkward folders, and `quark` on the path."""
    folder, bin_folder = tmp_path / "project", tmp_path / "bin"
    for name in ("fox-1", "fox-22", "$(touch hacked)"):
        (folder / "runs" / name).mkdir(parents=True)
    (folder / "data/my set [train]/deep").mkdir(parents=True)
    (folder / "data/plain").mkdir(parents=True)
    (folder / "quark.yaml").touch()
    bin_folder.mkdir()
    program = Path(quark_cli.__file__).parents[2] / "quark_cli.py"
    quark = bin_folder / "quark"
    quark.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    quark.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    monkeypatch.delenv("FPATH", raising=False)
    monkeypatch.chdir(folder)
    for shell in PLACES:
        install_completion(shell, FLAGS, tmp_path)
    return tmp_path


START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
TYPED = {
    # what is typed before Tab, and what the line then holds
    "quark doc": "quark doctor",
    "quark show fox-2": "quark show fox-22",
    "quark train quark with data/pl": "quark train quark with data/plain/",
    'quark "train quark with data/pl': 'quark "train quark with data/plain/',
    'quark "show fox-2': 'quark "show fox-22',
    "quark list --pl": "quark list --plan",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_keys_at_a_real_shell(project, shell):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    child = pexpect.spawn(
        START[shell][0], START[shell][1:], encoding="utf-8", timeout=30, dimensions=(24, 200),
        env={**os.environ, "PS1": "", "TERM": "dumb"},
    )  # fmt: skip
    script = project / PLACES[shell]
    if shell == "bash":
        child.sendline(f"bind 'set bell-style none'; source {script}; echo rea''dy")
    else:
        child.sendline(f"fpath=({script.parent} $fpath); unsetopt zle_bracketed_paste")
        child.sendline("PROMPT=; autoload -Uz compinit && compinit -D -u; echo rea''dy")
    child.expect("ready\r\n")
    for typed, line in TYPED.items():
        child.send(f"{typed}\t")
        child.expect("\\x07?".join(map(re.escape, line)))  # zsh may beep in between
        child.send("\x15")
    child.sendline("")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()
    assert not (Path.cwd() / "hacked").exists()


def test_fish_is_asked(project):
    if not shutil.which("fish"):
        pytest.skip("no fish here")
    script = project / PLACES["fish"]
    for typed, line in TYPED.items():
        if '"' in typed:
            continue  # fish completes a quoted word by its whole
        asked = f"source {script}; complete -C {shlex.quote(typed)}"
        done = subprocess.run(["fish", "-c", asked], check=True, capture_output=True, text=True)
        assert line.split()[-1] in [one.split("\t")[0] for one in done.stdout.splitlines()]


def test_only_plain_names_are_told_to_a_shell(project, capsys):
    Path("runs/mlflow.db").write_text("no run")
    assert run_program(["--complete", "runs"]) == 0
    assert capsys.readouterr().out.split() == ["fox-1", "fox-22"]
    Path("quark.yaml").write_text("odd: [")
    assert run_program(["--complete", "runs"]) == 0
    assert capsys.readouterr() == ("", "")


def test_every_command_is_of_the_language():
    hub = KnowledgeHub()
    for word in set(COMMANDS) - {"why", "explain"}:
        assert hub.read(word).intent is not None, word


def test_what_cannot_be_installed(tmp_path):
    with pytest.raises(UsageError, match="tcsh"):
        completion_script("tcsh", FLAGS)
    with pytest.raises(UsageError, match="HOME"):
        install_completion("bash", FLAGS, None)
    (tmp_path / ".local").write_text("")
    with pytest.raises(UsageError):
        install_completion("bash", FLAGS, tmp_path)

"""Completion for shells: the files, and bash itself asked what it completes."""

import shutil
import subprocess

import pytest

from knowledge_hub.hub import KnowledgeHub
from tools_utilities.errors import UsageError
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

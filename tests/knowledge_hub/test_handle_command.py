"""`KnowledgeHub().handle_command`: a sentence carried out from Python."""

from knowledge_hub.hub import KnowledgeHub


def test_a_dataset_alias_of_the_project_is_known(tmp_path, monkeypatch, capsys):
    (tmp_path / "quark.yaml").write_text("datasets: {genomes: data/nowhere/}\n")
    monkeypatch.chdir(tmp_path)

    code = KnowledgeHub().handle_command("train quark with genomes for 2 steps")

    assert code == 3  # read and looked for, not a word that nobody knows
    assert "data/nowhere" in capsys.readouterr().err


def test_a_word_nobody_knows_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert KnowledgeHub().handle_command("train quark with genomes for 2 steps") == 2
    assert "genomes" in capsys.readouterr().err

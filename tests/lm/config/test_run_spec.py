from lm.config.run_spec import DataFiles


def test_files_have_a_first_name_whatever_they_hold():
    assert DataFiles(("a.txt", "b.txt")).first == "a.txt"
    assert DataFiles(source=("a.en",), target=("a.de",)).first == "a.en"
    assert DataFiles(pairs=("a.tsv",)).first == "a.tsv"
    assert not DataFiles()

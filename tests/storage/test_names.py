"""Names of deliveries hold in Dagster and as folders, whatever the source calls its files."""

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings_pipeline.storage.names import folder_of, name_of, source_of

SOURCES = [
    *("2024/works.parquet", "a@b/c.jsonl", "a...b....c", "a,b", "x=1/y.csv", "_run", "..", ".hidden", " a ", "a\tb\n"),
    *("книги/тест.jsonl", "a" * 300, "é" * 200 + ".parquet", "whole", "a*[b]?.csv", "A.PARQUET", "x@-y"),
]


@pytest.mark.parametrize("source", SOURCES)
def test_dagster_takes_the_name_as_a_partition_key_and_its_command_line_does_not_split_it(source: str) -> None:
    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions("deliveries", [name_of(source)])
        assert instance.get_dynamic_partitions("deliveries") == [name_of(source)]
    dg.StaticPartitionsDefinition([name_of(source)])
    assert "," not in name_of(source)


@given(st.text(min_size=1))
def test_a_name_leads_back_to_its_source_so_that_two_never_share_one(source: str) -> None:
    assert source_of(name_of(source)) == source


@given(st.text(st.sampled_from("ab@./=_ -é") | st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_a_short_folder_leads_back_to_its_name(source: str) -> None:
    name = name_of(source)
    folder = folder_of(name)
    assert len(folder.encode()) <= 200
    assert not set("/\\=*?[]{}\0") & set(folder)
    assert not folder.startswith((".", "_"))
    if "@-" not in folder:
        assert source_of(folder) == name


def test_long_names_that_begin_alike_have_folders_of_their_own() -> None:
    folders = {folder_of("a" * 300 + str(number)) for number in range(100)}
    assert len(folders) == 100
    assert max(len(folder) for folder in folders) <= 200


def test_ordinary_names_stay_readable_and_no_folder_is_taken_for_a_parquet_file() -> None:
    assert name_of("2024/works 1.parquet") == "2024/works 1.parquet"
    assert folder_of("2024/works 1.parquet") == "2024@2Fworks 1@2Eparquet"
    assert folder_of("whole") == "whole"

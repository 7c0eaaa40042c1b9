from chairlift.cluster.block_names import NameChanges, extend_names, short_name, short_names
from chairlift.cluster.protocol import BlockEvents


def names_of(tokens, salt: str = "", block_size: int = 4) -> list[bytes]:
    names: list[bytes] = []
    extend_names(names, tokens, salt, block_size, len(tokens) // block_size)
    return names


class TestNames:
    def test_they_stay_what_they_are(self):
        """Routers and workers of different releases must mean the same."""
        assert [name.hex() for name in names_of(range(10), "salt")] == [
            "3cc2bda1ccbe7904ea2a1cd36a29dbedd019fd2b1b16f436b0a6db18b7955b13",
            "20bd1c49f8a9758d352365bb1d00a364372ff8755e7feab774b0faa985c4bb83",
        ]

    def test_equal_names_mean_equal_prefixes_of_one_salt(self):
        first, second = names_of(range(8))
        assert names_of([*range(4), 9, 9, 9, 9])[0] == first
        assert names_of([9, 1, 2, 3, *range(4, 8)])[1] != second
        assert names_of(range(8), "salt")[0] != first

    def test_they_can_be_extended_later(self):
        names = names_of(range(8))
        extend_names(names, range(12), "", 4, 3)
        assert names == names_of(range(12))
        extend_names(names, range(12), "", 4, 1)
        assert names == names_of(range(12))

    def test_short_names_are_those_of_the_full_blocks(self):
        assert short_names(range(11), "s", 4) == tuple(map(short_name, names_of(range(11), "s")))
        assert short_names(range(3), "s", 4) == ()
        assert all(0 <= name < 2**64 for name in short_names(range(400), "", 4))


class TestChanges:
    def test_what_came_and_what_went_is_told_once(self):
        changes = NameChanges()
        changes.came(1)
        changes.went(2)
        assert changes.take() == BlockEvents(added=(1,), removed=(2,))
        assert changes.take() is None

    def test_what_undid_itself_stands_in_neither(self):
        changes = NameChanges()
        changes.came(1)
        changes.went(1)
        changes.went(2)
        changes.came(2)
        assert len(changes) == 0
        assert changes.take() is None

    def test_the_last_state_wins(self):
        changes = NameChanges()
        for _ in range(3):
            changes.came(1)
            changes.went(1)
            changes.went(2)
            changes.came(2)
        changes.came(1)
        changes.went(2)
        assert changes.take() == BlockEvents(added=(1,), removed=(2,))

    def test_events_join_as_if_they_had_been_one(self):
        changes = NameChanges()
        changes.add(BlockEvents(added=(1, 2), removed=(3, 4)))
        changes.add(BlockEvents(added=(3, 5), removed=(1,)))
        assert changes.take() == BlockEvents(added=(2, 5), removed=(4,))

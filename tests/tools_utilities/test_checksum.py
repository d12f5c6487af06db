import base64

from tools_utilities.checksum import crc32c, decode_crc32c, encode_crc32c


def test_crc32c_is_the_published_one():
    # RFC 3720 B.4 and the check value of the CRC catalogue.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_crc32c_continues_from_the_bytes_before():
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_spelling_is_base64_of_the_big_end_first():
    assert encode_crc32c(0xE3069283) == base64.b64encode(bytes.fromhex("e3069283")).decode()
    assert decode_crc32c(encode_crc32c(5)) == 5


def test_what_is_no_checksum_is_none():
    for text in ("", "abc", "AAAA", "not base64!", "AAAAAAAA"):
        assert decode_crc32c(text) is None

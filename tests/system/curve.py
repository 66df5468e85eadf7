"""A client of ZeroMQ's CURVE mechanism (RFC 26) that may send any properties with its handshake. libsodium encrypts."""

import ctypes
import ctypes.util
import os
import struct
from typing import Tuple

sodium = ctypes.CDLL(ctypes.util.find_library("sodium") or "libsodium.so.23")
BOX_OVERHEAD = 16


def key_pair() -> Tuple[bytes, bytes]:
    public, secret = ctypes.create_string_buffer(32), ctypes.create_string_buffer(32)
    sodium.crypto_box_keypair(public, secret)
    return public.raw, secret.raw


def box(text: bytes, nonce: bytes, public: bytes, secret: bytes) -> bytes:
    sealed = ctypes.create_string_buffer(len(text) + BOX_OVERHEAD)
    assert sodium.crypto_box_easy(sealed, text, ctypes.c_ulonglong(len(text)), nonce, public, secret) == 0
    return sealed.raw


def opened(sealed: bytes, nonce: bytes, public: bytes, secret: bytes) -> bytes:
    text = ctypes.create_string_buffer(len(sealed) - BOX_OVERHEAD)
    assert sodium.crypto_box_open_easy(text, sealed, ctypes.c_ulonglong(len(sealed)), nonce, public, secret) == 0
    return text.raw


def greeting(mechanism: bytes) -> bytes:
    """Of ZMTP 3.1."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(52, b"\0")


def command(body: bytes) -> bytes:
    head = b"\x04" + bytes([len(body)]) if len(body) < 256 else b"\x06" + struct.pack(">Q", len(body))
    return head + body


def a_property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


class Handshake:
    """Of one connection. The caller sends `begin()`, and what `answer()` returns for the server's greeting and welcome."""

    welcome_bytes = 64 + 2 + 8 + 16 + 144

    def __init__(self, listening_key: bytes) -> None:
        self.listening_key = listening_key
        self.public, self.secret = key_pair()  # of the client
        self.passing_public, self.passing_secret = key_pair()  # of this connection

    def begin(self) -> bytes:
        number = struct.pack(">Q", 1)
        proof = box(bytes(64), b"CurveZMQHELLO---" + number, self.listening_key, self.passing_secret)
        hello = b"\x05HELLO\x01\x00" + bytes(72) + self.passing_public + number + proof
        return greeting(b"CURVE") + command(hello)

    def answer(self, heard: bytes, properties: bytes) -> bytes:
        """`heard`: the first welcome_bytes that the server has sent."""
        nonce, sealed = heard[-160:-144], heard[-144:]
        welcome = opened(sealed, b"WELCOME-" + nonce, self.listening_key, self.passing_secret)
        its_key, cookie = welcome[:32], welcome[32:]
        number, random = struct.pack(">Q", 2), os.urandom(16)
        vouch = box(self.passing_public + self.listening_key, b"VOUCH---" + random, its_key, self.secret)
        told = self.public + random + vouch + a_property(b"Socket-Type", b"DEALER") + properties
        return command(
            b"\x08INITIATE" + cookie + number + box(told, b"CurveZMQINITIATE" + number, its_key, self.passing_secret)
        )

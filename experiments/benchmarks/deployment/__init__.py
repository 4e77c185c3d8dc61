"""Rounds over a real SuperLink with TLS: stock Flower's nodes beside this project's."""

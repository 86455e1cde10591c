import unittest

from prices import with_tax


class Prices(unittest.TestCase):
    def test_with_tax(self):
        assert with_tax(1000) == 1190
        assert with_tax(0) == 0

"""Rolls dice."""

import random

from fastmcp import FastMCP

mcp = FastMCP("Dice")


@mcp.tool
def roll(sides: int) -> int:
    return random.randint(1, sides)


if __name__ == "__main__":
    mcp.run(show_banner=False)

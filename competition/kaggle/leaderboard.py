"""The public leaderboard of a competition."""

from dataclasses import dataclass

from competition.kaggle.client import Client, ask


@dataclass(frozen=True)
class Row:
    team: str
    score: str  # as formatted by Kaggle
    date: str  # of the last submission, ISO 8601


@dataclass(frozen=True)
class Leaderboard:
    rows: tuple[Row, ...]  # best first
    team: str  # this account's team; "" = no submission yet
    rank: int  # of this team; 0 = unknown
    teams: int  # number of teams; 0 = unknown


def read(client: Client, slug: str, rows: int) -> Leaderboard:
    """Read the first `rows` rows."""
    answer = ask(client, "leaderboard", {"slug": slug, "rows": rows}, slug)
    return Leaderboard(tuple(Row(**row) for row in answer["rows"]), answer["team"], answer["rank"], answer["teams"])


def standing(board: Leaderboard) -> str:
    """One sentence about this team's rank: Kaggle's number, else its place among the rows that were read."""
    names = [row.team for row in board.rows]
    place = names.index(board.team) + 1 if board.team in names else 0
    if rank := board.rank or place:
        return f"{board.team or 'this team'} is number {rank}" + (f" of {board.teams:,}" if board.teams else "")
    if not board.team:
        return "this account has submitted nothing yet, or Kaggle does not name its team"
    return f"Kaggle does not return the rank of {board.team}, which is not among these rows"

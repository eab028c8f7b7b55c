"""The public leaderboard of a competition."""

from dataclasses import dataclass

from competition.kaggle.answers import objects, text, utc_time, whole
from competition.kaggle.client import Client, call


@dataclass(frozen=True)
class Leaderboard:
    rows: tuple[tuple[str, str, str], ...]  # (team, score as Kaggle formats it, time in UTC), best first
    team: str  # this account's team; "" = no submission yet
    rank: int  # of this team; 0 = unknown
    teams: int  # number of teams; 0 = unknown


def read(client: Client, slug: str, rows: int) -> Leaderboard:
    """Read the first `rows` rows of the public leaderboard."""
    about = call(client, slug, "competitions", "GetCompetition", competitionName=slug)
    own = call(client, slug, "competitions", "ListSubmissions", competitionName=slug, pageSize=20)
    top = call(client, slug, "competitions", "GetLeaderboard", competitionName=slug, pageSize=rows)
    entries = [
        (text(entry.get("teamName")), text(entry.get("score")), utc_time(entry.get("submissionDate")))
        for entry in objects(top.get("submissions"))[:rows]
    ]
    teams = [text(entry.get("teamName")) for entry in objects(own.get("submissions"))]
    rank, count = whole(about.get("userRank")) or 0, whole(about.get("teamCount")) or 0
    return Leaderboard(tuple(entries), next(filter(None, teams), ""), rank, count)


def standing(board: Leaderboard) -> str:
    """One sentence about this team's rank: Kaggle's number, else its place among the rows that were read."""
    names = [team for team, _, _ in board.rows]
    place = names.index(board.team) + 1 if board.team in names else 0
    if rank := board.rank or place:
        return f"{board.team or 'this team'} is number {rank}" + (f" of {board.teams:,}" if board.teams else "")
    if not board.team:
        return "this account has submitted nothing yet, or Kaggle does not name its team"
    return f"Kaggle does not return the rank of {board.team}, which is not among these rows"

"""The public leaderboard of a competition."""

from competition.kaggle.answers import objects, text, utc_time, whole
from competition.kaggle.client import Client, call

Row = tuple[str, str, str]  # (team, score as Kaggle formats it, time in UTC)


def read(client: Client, slug: str, rows: int) -> tuple[list[Row], str, str]:
    """The first `rows` rows of the public leaderboard, this account's team, and a sentence about its rank.

    The team is "" without a submission.
    """
    about = call(client, slug, "competitions", "GetCompetition", competitionName=slug)
    own = call(client, slug, "competitions", "ListSubmissions", competitionName=slug, pageSize=20)
    top = call(client, slug, "competitions", "GetLeaderboard", competitionName=slug, pageSize=rows)
    entries = [
        (text(entry.get("teamName")), text(entry.get("score")), utc_time(entry.get("submissionDate")))
        for entry in objects(top.get("submissions"))[:rows]
    ]
    team = next((name for entry in objects(own.get("submissions")) if (name := text(entry.get("teamName")))), "")
    rank, teams = whole(about.get("userRank")), whole(about.get("teamCount"))
    if rank:
        return entries, team, f"{team or 'this team'} is number {rank}" + (f" of {teams:,}" if teams else "")
    return (
        entries,
        team,
        f"Kaggle does not return the rank of {team or 'this team, which may have submitted nothing yet'}",
    )

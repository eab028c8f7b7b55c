"""The public leaderboard of a competition."""

from competition.kaggle.answers import objects, text, utc_time, whole
from competition.kaggle.client import Client, call

Row = tuple[str, str, str]  # (team, score as Kaggle formats it, time in UTC)


def read(client: Client, slug: str, rows: int) -> tuple[list[Row], str, str]:
    """The first `rows` rows of the public leaderboard, this account's team, and a sentence about its rank.

    The team is "" without a submission. Its rank is Kaggle's number, else its place among the rows that were read.
    """
    about = call(client, slug, "competitions", "GetCompetition", competitionName=slug)
    own = call(client, slug, "competitions", "ListSubmissions", competitionName=slug, pageSize=20)
    top = call(client, slug, "competitions", "GetLeaderboard", competitionName=slug, pageSize=rows)
    entries = [
        (text(entry.get("teamName")), text(entry.get("score")), utc_time(entry.get("submissionDate")))
        for entry in objects(top.get("submissions"))[:rows]
    ]
    team = next((name for entry in objects(own.get("submissions")) if (name := text(entry.get("teamName")))), "")
    place = next((place for place, entry in enumerate(entries, 1) if team and entry[0] == team), 0)
    teams = whole(about.get("teamCount"))
    if rank := whole(about.get("userRank")) or place:
        sentence = f"{team or 'this team'} is number {rank}" + (f" of {teams:,}" if teams else "")
    elif not team:
        sentence = "this account has submitted nothing yet, or Kaggle does not name its team"
    else:
        sentence = f"Kaggle does not return the rank of {team}, which is not among these rows"
    return entries, team, sentence

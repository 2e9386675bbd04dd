"""Hidden groups of synthetic users whose clicks follow from their histories in different ways.

Two things tell groups apart, so that methods that personalise models have something to find:

- ``source``: an interest in topic ``source[g, k]``, which a member of group g shows by what it reads, makes it click on
  topic k. Any two groups disagree on every topic, so no single map from interests to clicks serves two groups, and
  group 0's is the identity. Each group's map shifts one order of the topics, that of a random order of the categories,
  so that topics of one category are mostly read as topics of one other.
- ``typical``: interests of a reader whom all members resemble in some of what they read. So users can be grouped by
  their histories; what members click in impressions does not depend on it.
"""

import math
from dataclasses import dataclass

import numpy as np

from fednews.data.words import TOPICS
from fednews.streams import Streams

CATEGORIES = list(dict.fromkeys(topic.category for topic in TOPICS))
PARENT = np.array([CATEGORIES.index(topic.category) for topic in TOPICS])  # topic -> category
LEVELS = len(CATEGORIES) + len(TOPICS)


def topic_interests(noise: np.ndarray, kinship: float) -> np.ndarray:
    """Standard normals ``[..., LEVELS]`` of categories and topics to interests ``[..., topics]``, most of them 0."""
    category = np.float32(math.sqrt(2 * kinship)) * noise[..., PARENT]  # times 1 at the default, which rounds nothing
    topic = np.float32(math.sqrt(2 - 2 * kinship)) * noise[..., len(CATEGORIES) :]
    return np.maximum((category + topic) / np.float32(math.sqrt(2)) - np.float32(0.5), 0)


@dataclass(frozen=True)
class Groups:
    """What the members of each group have in common.

    Attributes:
        source: int64 ``[groups, topics]``, each row a permutation.
        typical: float32 ``[groups, topics]``, interests of the typical reader.
        strength: how far clicks follow ``source``, from 0 to 1.
        visibility: share of the typical reader's clicks in histories; 0 where there is one group.
    """

    source: np.ndarray
    typical: np.ndarray
    strength: float
    visibility: float

    @classmethod
    def draw(cls, groups: int, strength: float, visibility: float, kinship: float, streams: Streams) -> "Groups":
        """Draw ``groups`` groups, at most as many as there are topics."""
        rng = streams.numpy("groups")
        order = np.argsort(rng.permutation(len(CATEGORIES))[PARENT], kind="stable")
        shift = np.arange(groups) * len(TOPICS) // groups
        source = np.empty((groups, len(TOPICS)), np.int64)
        source[:, order] = order[(np.arange(len(TOPICS)) + shift[:, None]) % len(TOPICS)]
        typical = topic_interests(rng.standard_normal((groups, LEVELS), np.float32), kinship)
        return cls(source, typical, strength, visibility if groups > 1 else 0.0)

    def members(self, users: int, streams: Streams, block: int) -> np.ndarray:
        """Group of each user of a block, int64 ``[users]``, all groups equally likely."""
        return streams.numpy("group members", block).integers(len(self.source), size=users)

    def reads(self, own: np.ndarray, group: np.ndarray, supply: np.ndarray, interest: float) -> np.ndarray:
        """Add the typical readers' share to weights of what users read.

        Args:
            own: ``[users, weeks, topics]``, the users' own weights.
            group: ``[users]``.
            supply: ``[weeks, topics]``, the weights of one without interests.
            interest: weight of interests in what is read.

        Returns:
            Weights ``[users, weeks, topics]``, exactly ``own`` where nothing is shared.
        """
        others = np.exp(interest * self.typical[:, None]) * supply
        others *= self.visibility / (1 - self.visibility) / others.sum(-1, keepdims=True)
        return own + own.sum(-1, keepdims=True) * others[group]

    def pull(
        self, match: np.ndarray, group: np.ndarray, user: np.ndarray, day: np.ndarray, topic: np.ndarray
    ) -> np.ndarray:
        """How much each candidate draws its user, as the user's group sees it.

        Args:
            match: ``[users, days, topics]``.
            group: ``[users]``.
            user: ``[candidates]``, to whom each is shown.
            day: ``[candidates]``.
            topic: ``[candidates]``, the candidate's own.
        """
        own = match[user, day, topic]
        # exactly `own` where there is one group or no strength, since its source is the topic itself
        return own + self.strength * (match[user, day, self.source[group[user], topic]] - own)

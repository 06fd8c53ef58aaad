"""The example of `rerank rank --example` and of the inspector's empty page."""

EXAMPLE_QUERY = "how long does a flea live"
#: Every second passage answers the query. An answer shares at most one word with it, and two other passages share more.
EXAMPLE_PASSAGES = (
    "How long can people live on a small boat?",
    "An adult flea survives a hundred days.",
    "The flea market is open all day long.",
    "Most fleas die within three months.",
    "Deserts are dry, and their nights are cold.",
    "Some say that a flea's life lasts a year.",
)

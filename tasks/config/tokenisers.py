"""The names of the tokenisers that a config may ask for."""

# name -> NLTK's class; see tasks/data/tokenisers.py
TOKENISERS: dict[str, str] = {
    "treebank": "NLTKWordTokenizer",
    "wordpunct": "WordPunctTokenizer",
    "toktok": "ToktokTokenizer",
    "tweet": "TweetTokenizer",
}

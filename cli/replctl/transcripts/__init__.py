"""What sessions were given and what they answered, from the transcripts of this user: also of sessions that are gone.

Nothing here speaks to a broker, and nothing here brings a variable back.
"""

"""Are alerts right, and does every one arrive?"""

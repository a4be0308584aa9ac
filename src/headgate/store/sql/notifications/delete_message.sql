DELETE FROM headgate.message WHERE number = $1

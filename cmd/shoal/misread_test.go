package main

import _ "github.com/shoaldb/shoal/command/commandtest" // a read of an argument that the command does not have fails

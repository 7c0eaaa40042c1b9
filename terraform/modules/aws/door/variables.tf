variable "name" {
  type        = string
  description = "Prefix of every name."
}

variable "domain" {
  type        = string
  description = "Name that clients use."

  validation {
    condition     = can(regex("^[a-z0-9-]+(\\.[a-z0-9-]+)+$", var.domain))
    error_message = "domain must be a full name, such as llm.example.org."
  }
}

variable "zone_id" {
  type        = string
  description = "Public Route 53 zone that the name belongs to."
}

variable "vpc_id" {
  type        = string
  description = "Network of the targets."
}

variable "subnet_ids" {
  type        = list(string)
  description = "Subnets of the load balancer, one a zone: public ones unless it is internal."
}

variable "internal" {
  type        = bool
  description = "Reachable from the network and what is connected to it only."
  default     = false
}

variable "client_cidrs" {
  type        = set(string)
  description = "Who may reach the service, as addresses; `0.0.0.0/0` for everybody."

  validation {
    condition     = length(var.client_cidrs) > 0 && alltrue([for each in var.client_cidrs : can(cidrhost(each, 0))])
    error_message = "client_cidrs must be at least one range of IPv4 addresses, such as 203.0.113.0/24."
  }
}

variable "target_security_group_id" {
  type        = string
  description = "Group of the targets, which gets a rule that lets the load balancer in."
}

variable "http_port" {
  type        = number
  description = "Port of the targets that HTTP goes to; clients use 443."

  validation {
    condition     = var.http_port >= 1024 && var.http_port <= 65535
    error_message = "http_port must be 1024 to 65535."
  }
}

variable "grpc_port" {
  type        = number
  description = "Port of the targets that gRPC goes to; clients use 9443. Null for no gRPC."
  default     = null

  validation {
    condition     = var.grpc_port == null ? true : var.grpc_port >= 1024 && var.grpc_port <= 65535
    error_message = "grpc_port must be 1024 to 65535."
  }
}

variable "router_tls" {
  type        = bool
  description = "The routers speak TLS as well; their certificate is not looked at."
  default     = false
}

variable "deletion_protection" {
  type        = bool
  description = "Refuse to delete the load balancer until this is off again."
  default     = true
}

variable "tags" {
  type        = map(string)
  description = "Tags of everything that takes some."
  default     = {}
}

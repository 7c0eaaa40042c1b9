# One machine that serves and a small head, without Kubernetes: the least that Chairlift runs on in a
# cloud with everything in place. Without a domain it is reached through `aws ssm start-session`.

terraform {
  required_version = ">= 1.11"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.25"
    }
  }
}

variable "region" {
  type        = string
  description = "Region of AWS."
  default     = "eu-central-1"
}

variable "package" {
  type        = string
  description = "What pip installs; see the module."
}

variable "budget_email" {
  type        = string
  description = "Who is told when the month becomes dear."
}

provider "aws" {
  region = var.region
}

module "chairlift" {
  source = "../../../modules/ray-vm"

  name                = "chairlift-small"
  package             = var.package
  constraints         = file("${path.module}/../../../../constraints.txt")
  workers             = { instance_types = ["c7i.2xlarge"] } # no GPU: the embedded model wants none
  budget              = { monthly_usd = 500, emails = [var.budget_email] }
  deletion_protection = false
}

output "head_instance_id" {
  description = "For `aws ssm start-session --target`."
  value       = module.chairlift.head_instance_id
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.chairlift.weights_bucket
}
